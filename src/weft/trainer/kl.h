#pragma once
// How far a policy has gone from its reference, as estimated from the tokens that it sampled, and
// the coefficient that this is charged with.

#include <cstdint>
#include <optional>
#include <string_view>

namespace weft {

// Of KL(policy || reference) by one token sampled from the policy, with d = log policy - log
// reference: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. k1 and k3 have no bias, k2 and k3 are
// never negative. Source: Schulman, "Approximating KL divergence" (2020).
enum class KlEstimator { kK1, kK2, kK3 };

std::optional<KlEstimator> try_kl_estimator(std::string_view name);  // "k1", "k2", "k3"

struct KlTerm {
  double value = 0;  // nats
  double slope = 0;  // its derivative by `logprob`
};

KlTerm kl_term(KlEstimator estimator, double logprob, double reference_logprob);

// A coefficient that holds the KL of answers near a target: after `answers` answers whose mean KL
// was `kl`, it is multiplied by 1 + clamp(kl / target - 1, -0.2, 0.2) * answers / horizon. Source:
// Ziegler et al., "Fine-tuning language models from human preferences", section 2.2. One thread.
class KlCoefficient {
 public:
  // `target`: nats an answer; 0 keeps the coefficient as it is. `horizon`: answers.
  KlCoefficient(double value, double target, double horizon)
      : value_(value), target_(target), horizon_(horizon) {}

  double value() const { return value_; }
  void set(double value) { value_ = value; }
  void adapt(double kl, std::uint64_t answers);

 private:
  double value_, target_, horizon_;
};

}  // namespace weft
