#include "weft/trainer/online_dpo.h"

#include <algorithm>
#include <numeric>

#include "weft/trainer/losses.h"

namespace weft {
namespace {

double sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

class OnlineDpo final : public Algorithm {
 public:
  explicit OnlineDpo(const DpoSection& config)
      : config_(config),
        kind_(config.loss == "ipo" ? PreferenceLoss::kIpo : PreferenceLoss::kDpo) {}

  bool needs_reference() const override { return true; }
  Importance importance() const override { return Importance::kNone; }

  LearningPlan prepare(const StepData& data, StepMetrics&) override {
    LearningPlan plan{{}, 2};
    for (const auto& [best, worst] :
         best_and_worst(data.experience.rewards, data.experience.group_size)) {
      plan.answers.push_back(best);
      plan.answers.push_back(worst);
    }
    return plan;
  }

  AnswerLoss loss(const StepData& data, std::span<const std::size_t> answers,
                  const TokenScores& scores) const override {
    // A mean over the prompts, of which some have no pair.
    const double weight = static_cast<double>(data.experience.group_size) / data.answers;
    AnswerLoss loss;
    std::span<const double> left = scores.logprobs;
    for (std::size_t at = 0; at < answers.size(); at += 2) {
      const std::size_t best = answers[at], worst = answers[at + 1];
      const double chosen = sum(left.first(data.length(best)));
      left = left.subspan(data.length(best));
      const double rejected = sum(left.first(data.length(worst)));
      left = left.subspan(data.length(worst));
      const PairLoss pair = preference_loss(kind_, chosen, rejected, sum(data.reference[best]),
                                            sum(data.reference[worst]), config_.beta);
      loss.loss += weight * pair.value;
      auto& gradient = loss.gradient.logprobs;
      gradient.insert(gradient.end(), data.length(best), weight * pair.slope);
      gradient.insert(gradient.end(), data.length(worst), -weight * pair.slope);
    }
    return loss;
  }

 private:
  DpoSection config_;
  PreferenceLoss kind_;
};

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> best_and_worst(std::span<const double> rewards,
                                                                std::size_t group_size) {
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (auto group = rewards.begin(); group != rewards.end();
       group += static_cast<std::ptrdiff_t>(group_size)) {
    const auto end = group + static_cast<std::ptrdiff_t>(group_size);
    const auto best = std::max_element(group, end), worst = std::min_element(group, end);
    if (*best == *worst) continue;
    pairs.emplace_back(best - rewards.begin(), worst - rewards.begin());
  }
  return pairs;
}

std::unique_ptr<Algorithm> make_online_dpo(const DpoSection& config) {
  return std::make_unique<OnlineDpo>(config);
}

}  // namespace weft
