#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "weft/protocol/block_frame.h"
#include "weft/transfer/publisher.h"
#include "weft/transfer/transfer_fixture.h"

namespace weft {
namespace {

using namespace transfer_test;

TEST(Push, ReplacesWhatIsServed) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 2);

  const auto report = blocking_push(bench.client(), next.views(), {.label = "step-1"});

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_EQ(bench.current().id, report->id);
  EXPECT_EQ(bench.current().label, "step-1");
  EXPECT_FALSE(bench.current().converted);
  EXPECT_EQ(report->skipped_bytes, 0u);
}

TEST(Push, SendsOnlyTheBlocksThatChanged) {
  Bench bench;
  auto next = random_tensors(bench.model(), 1);  // as served
  Bytes& large = next.data[next.find("model.large.weight")];
  large[kBlockBytes + 1] ^= std::byte{1};

  const auto report = blocking_push(bench.client(), next.views(), {});

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_EQ(report->sent_bytes, kBlockBytes + kBlockFrameBytes);
  EXPECT_EQ(report->skipped_bytes, report->total_bytes - kBlockBytes);
  EXPECT_EQ(bench.current().label, "default");
}

TEST(Weights, OneBodyIsAWholeUpdate) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 3);

  const auto answer = bench.call("PUT", "/weft/v1/weights?label=step%202", next.file());

  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(member(answer.body, "label"), "step 2");
  EXPECT_EQ(member(answer.body, "id"), bench.current().id);
  EXPECT_EQ(bench.served(), next.bytes());
}

}  // namespace
}  // namespace weft
