#include "weft/trainer/algorithm.h"

#include "weft/trainer/grpo.h"
#include "weft/trainer/online_dpo.h"
#include "weft/trainer/ppo.h"
#include "weft/trainer/rloo.h"

namespace weft {

std::unique_ptr<Algorithm> make_algorithm(const TrainConfig& config, std::size_t longest_answer) {
  if (config.algorithm == "ppo") return make_ppo(config.ppo, config.kl);
  if (config.algorithm == "rloo") return make_rloo(config.rloo, config.kl);
  if (config.algorithm == "dpo") return make_online_dpo(config.dpo);
  return make_grpo(config.grpo, config.kl, longest_answer);
}

std::vector<double> gather(std::span<const std::vector<double>> lists,
                           std::span<const std::size_t> answers) {
  std::vector<double> all;
  for (const std::size_t i : answers) all.insert(all.end(), lists[i].begin(), lists[i].end());
  return all;
}

std::vector<double> with_importance(const StepData& data, std::span<const std::size_t> answers,
                                    std::vector<double> weights) {
  if (data.importance.empty()) return weights;
  const std::vector<double> importance = gather(data.importance, answers);
  for (std::size_t tok = 0; tok < weights.size(); ++tok) weights[tok] *= importance[tok];
  return weights;
}

}  // namespace weft
