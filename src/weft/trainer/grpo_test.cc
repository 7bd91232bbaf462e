#include "weft/trainer/grpo.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;
using testing::FloatNear;
using testing::Pointwise;

// Made by tests/golden/make_grpo_loss.py.
const std::vector<double> kRewards{1, 0, 0, 1, 0, 0, 1, 0};
const std::vector<float> kLogprobs{-0.7590171694755554f, -0.9475499987602234f, -0.9733065962791443f,
                                   -1.1841154098510742f, -0.9861452579498291f, -1.4104777574539185f,
                                   -0.8987514972686768f, -0.6966652274131775f};
const std::vector<float> kSampled{-1.1178120374679565f, -0.7031920552253723f, -0.8427941203117371f,
                                  -0.8746362328529358f, -1.2023041248321533f, -1.3357375860214233f,
                                  -0.7939468622207642f, -0.7166287899017334f};
const std::vector<double> kAdvantages{0.8658754297607016, -0.8658754297607016, -0.8658754297607016,
                                      0.8658754297607016, -0.4999000199960008, -0.4999000199960008,
                                      1.4997000599880024, -0.4999000199960008};
const std::vector<double> kGradient{0.0,
                                    0.0,
                                    0.07599317120718459,
                                    -0.06354045455663246,
                                    0.062052567722905176,
                                    0.046389950605315027,
                                    -0.13504805513289667,
                                    0.05099800875354938};
constexpr double kLoss = -0.0047168320290886245;

PolicyLoss loss_of(std::span<const float> logprobs) {
  return clipped_policy_loss(logprobs, kSampled, kAdvantages, 0.2, 0.28, 10);
}

TEST(GroupAdvantages, EqualTorchs) {
  EXPECT_THAT(group_advantages(kRewards, 4), Pointwise(DoubleNear(1e-12), kAdvantages));
}

TEST(GroupAdvantages, AreZeroWhereAllAnswersAreAlike) {
  EXPECT_THAT(group_advantages(std::vector<double>{1, 1, 0, 0}, 2), Each(0.0));
}

TEST(ClippedPolicyLoss, EqualsTorchsWithItsGradient) {
  const PolicyLoss loss = loss_of(kLogprobs);

  EXPECT_NEAR(loss.loss, kLoss, 1e-9);
  EXPECT_THAT(loss.gradient, Pointwise(FloatNear(1e-8f), kGradient));
  EXPECT_EQ(loss.clipped, 2u);
}

TEST(ClippedPolicyLoss, GradientEqualsFiniteDifferences) {
  const PolicyLoss loss = loss_of(kLogprobs);
  for (std::size_t tok = 0; tok < kLogprobs.size(); ++tok) {
    std::vector<float> above = kLogprobs, below = kLogprobs;
    above[tok] += 1e-3f;
    below[tok] -= 1e-3f;
    const double step = static_cast<double>(above[tok]) - below[tok];
    const double slope = (loss_of(above).loss - loss_of(below).loss) / step;
    EXPECT_NEAR(loss.gradient[tok], slope, 1e-6) << "token " << tok;
  }
}

TEST(ClippedPolicyLoss, PartsAddUpToTheWhole) {
  const PolicyLoss whole = loss_of(kLogprobs);
  double sum = 0;
  for (const std::size_t begin : {0u, 3u}) {
    const std::size_t size = begin == 0 ? 3 : 5;
    sum += clipped_policy_loss(std::span(kLogprobs).subspan(begin, size),
                               std::span(kSampled).subspan(begin, size),
                               std::span(kAdvantages).subspan(begin, size), 0.2, 0.28, 10)
               .loss;
  }
  EXPECT_NEAR(sum, whole.loss, 1e-12);
}

}  // namespace
}  // namespace weft
