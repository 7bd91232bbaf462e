#pragma once
// VersionCheck: did the tokens come from the versions they name? It keeps the weights that were
// published under each label and scores sampled tokens again with an engine of its own, in the
// deterministic mode in which the server runs: the log-probabilities must be equal bit for bit. One
// thread.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/engine/engine.h"
#include "weft/tensor/weight_set.h"
#include "weft/trainer/logprob_differences.h"
#include "weft/trainer/policy.h"
#include "weft/trainer/rollout.h"

namespace weft {

// Sums over tokens.
struct VersionCounts {
  std::uint64_t checked = 0;
  std::uint64_t wrong =
      0;  // would score otherwise under the version they name, or name none we know
  std::uint64_t discriminating = 0;  // would have scored otherwise under the version before

  VersionCounts& operator+=(const VersionCounts& other);
  double discriminating_share() const;  // of `checked`; 0 if that is
};

class VersionCheck {
 public:
  // `first` is the version that stands before all published ones. The newest `kept_versions` are
  // kept; tokens of older ones count as wrong. Errors: those of Engine::create.
  static Result<VersionCheck> create(const ModelConfig& config,
                                     std::shared_ptr<const WeightSet> first,
                                     std::size_t kept_versions = 4);

  // Takes a policy of the same model, whose weights will be those of one version after the other,
  // to compare log-probabilities with, where a policy that learns has gone on.
  void compare_with(std::unique_ptr<Policy> policy) { policy_ = std::move(policy); }

  // From now on `label` means `weights`.
  void remember(std::string label, std::shared_ptr<const WeightSet> weights);

  // Counts all tokens of `rollouts`, each the answer to the prompt at its place in `prompts`. An
  // answer that spans an update must have been computed again at it (`on_update`: "recompute"), so
  // that each token comes from one version alone. Adds to `differences` what the policy, if there
  // is one, says of tokens of older versions than the newest. Blocks. Errors: the engine's.
  Result<VersionCounts> blocking_check(std::span<const std::vector<std::uint32_t>> prompts,
                                       std::span<const Rollout> rollouts,
                                       LogprobDifferences& differences);

 private:
  struct Version {
    std::string label;
    std::shared_ptr<const WeightSet> weights;
  };
  // An answer with a part that comes from one version.
  struct Part {
    const Rollout* rollout;
    VersionSpan span;
  };
  VersionCheck(std::unique_ptr<Engine> engine, std::size_t kept_versions)
      : engine_(std::move(engine)), kept_versions_(kept_versions) {}

  // Log-probabilities of the answers' tokens under `version`; [sequences][answer tokens].
  Result<std::vector<std::vector<float>>> blocking_score(const Version& version,
                                                         std::span<const TokenSequence> sequences);

  // Of `parts`, which come from `version`.
  void compare(const Version& version, std::span<const TokenSequence> sequences,
               std::span<const Part> parts, LogprobDifferences& differences);

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Policy> policy_;
  std::size_t kept_versions_;
  std::deque<Version> versions_;  // oldest first
};

}  // namespace weft
