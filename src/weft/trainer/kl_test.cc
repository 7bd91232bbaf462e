#include "weft/trainer/kl.h"

#include <gtest/gtest.h>

#include "weft/testing/golden_cases.h"

namespace weft {
namespace {

TEST(KlTerm, EqualsTorchsWithItsSlope) {
  for (const char* const name : {"k1", "k2", "k3"}) {
    const GoldenCase golden(std::string("kl_") + name);
    const std::vector<double> logprobs = golden.list("logprobs");
    const std::vector<double> reference = golden.list("reference");
    const KlEstimator estimator = try_kl_estimator(name).value();
    for (std::size_t i = 0; i < logprobs.size(); ++i) {
      const KlTerm term = kl_term(estimator, logprobs[i], reference[i]);
      expect_near(term.value, golden.list("values")[i]);
      expect_near(term.slope, golden.list("slopes")[i]);
      expect_gradient([&](auto from) { return kl_term(estimator, from[0], reference[i]).value; },
                      std::span(&logprobs[i], 1), std::vector<double>{term.slope});
    }
  }
}

TEST(KlCoefficient, GrowsPastItsTargetAndShrinksBelow) {
  KlCoefficient coefficient(0.1, 6, 1000);
  coefficient.adapt(6.6, 100);
  EXPECT_NEAR(coefficient.value(), 0.1 * (1 + 0.1 * 0.1), 1e-12);
  coefficient.set(0.1);
  coefficient.adapt(60, 100);  // cut at 0.2
  EXPECT_NEAR(coefficient.value(), 0.1 * (1 + 0.2 * 0.1), 1e-12);
  coefficient.set(0.1);
  coefficient.adapt(0, 100);
  EXPECT_NEAR(coefficient.value(), 0.1 * (1 - 0.2 * 0.1), 1e-12);
}

TEST(KlCoefficient, StaysWithoutATarget) {
  KlCoefficient coefficient(0.1, 0, 1000);
  coefficient.adapt(60, 100);
  EXPECT_EQ(coefficient.value(), 0.1);
}

}  // namespace
}  // namespace weft
