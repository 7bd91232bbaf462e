#include "weft/trainer/kl.h"

#include <algorithm>
#include <cmath>

namespace weft {

std::optional<KlEstimator> try_kl_estimator(std::string_view name) {
  if (name == "k1") return KlEstimator::kK1;
  if (name == "k2") return KlEstimator::kK2;
  if (name == "k3") return KlEstimator::kK3;
  return std::nullopt;
}

KlTerm kl_term(KlEstimator estimator, double logprob, double reference_logprob) {
  const double d = logprob - reference_logprob;
  switch (estimator) {
    case KlEstimator::kK1:
      return {d, 1};
    case KlEstimator::kK2:
      return {d * d / 2, d};
    case KlEstimator::kK3:
      break;
  }
  return {std::expm1(-d) + d, -std::expm1(-d)};
}

void KlCoefficient::adapt(double kl, std::uint64_t answers) {
  if (target_ <= 0) return;
  const double error = std::clamp(kl / target_ - 1, -0.2, 0.2);
  value_ *= 1 + error * static_cast<double>(answers) / horizon_;
}

}  // namespace weft
