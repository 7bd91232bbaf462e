#include "weft/trainer/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<StepMetrics> two_steps() {
  std::vector<StepMetrics> steps(2);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i].step = i + 1;
    steps[i].tokens = 60;
    steps[i].answers = 10;
    steps[i].sync_bytes = 1000;
    steps[i].entropy = 0.5;
  }
  return steps;
}

TEST(PlotSvg, DrawsEachSeries) {
  const std::string svg = plot_svg({}, two_steps());

  EXPECT_THAT(svg, HasSubstr("<svg xmlns"));
  EXPECT_THAT(svg, HasSubstr("held-out, greedy"));
  EXPECT_THAT(svg, HasSubstr("Weight sync"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_EQ(plot_svg({}, {}), "");
}

TEST(ReportHtml, HasWhatWasMeasuredAndTheConfigAndNeedsNothingElse) {
  RunSummary summary;
  summary.failure = "a < b & c";
  const std::string html = report_html(summary, two_steps(), "[task]\nname = \"sort\"\n");

  for (const char* const part : {"Entropy", "Length of answers", "Lag", "Bytes sent", "Weight sync",
                                 "a &lt; b &amp; c", "[task]"}) {
    EXPECT_THAT(html, HasSubstr(part));
  }
  EXPECT_THAT(html, Not(HasSubstr("KL"))) << "it was not measured";
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
  EXPECT_THAT(html, Not(HasSubstr("href=")));
}

}  // namespace
}  // namespace weft
