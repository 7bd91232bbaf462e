#include "weft/trainer/version_check.h"

#include <algorithm>
#include <bit>
#include <future>
#include <latch>

namespace weft {
namespace {

// Takes the prompt's scores; the one token that the engine adds is of no use.
class PromptSink final : public SequenceSink {
 public:
  explicit PromptSink(std::latch& finished) : finished_(finished) {}

  void on_prompt(std::vector<ScoredToken> prompt, std::shared_ptr<const VersionName>) override {
    prompt_ = std::move(prompt);
  }
  void on_token(TokenEvent) override {}
  void on_finish(FinishEvent event) override {
    error_ = std::move(event.error);
    finished_.count_down();
  }

  // After `finished`.
  const std::vector<ScoredToken>& prompt() const { return prompt_; }
  const std::optional<Error>& error() const { return error_; }

 private:
  std::latch& finished_;
  std::vector<ScoredToken> prompt_;
  std::optional<Error> error_;
};

SequenceRequest score_request(const TokenSequence& sequence, std::shared_ptr<SequenceSink> sink) {
  SequenceRequest request;
  request.prompt = sequence.prompt;
  request.prompt.insert(request.prompt.end(), sequence.answer.begin(), sequence.answer.end());
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 1;
  request.sampling.prompt_logprobs = 0;
  request.sink = std::move(sink);
  return request;
}

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

}  // namespace

VersionCounts& VersionCounts::operator+=(const VersionCounts& other) {
  checked += other.checked;
  wrong += other.wrong;
  discriminating += other.discriminating;
  return *this;
}

double VersionCounts::discriminating_share() const {
  return checked == 0 ? 0 : static_cast<double>(discriminating) / static_cast<double>(checked);
}

Result<VersionCheck> VersionCheck::create(const ModelConfig& config,
                                          std::shared_ptr<const WeightSet> first,
                                          std::size_t kept_versions) {
  EngineOptions options;
  options.threads = 1;
  options.deterministic = true;
  options.kv_cache_bytes = 64u << 20;
  WEFT_TRY(auto engine, Engine::create(config, options, first, {"first", "first"}));
  VersionCheck check(std::move(engine), kept_versions);
  check.versions_.push_back({"", std::move(first)});
  return check;
}

void VersionCheck::remember(std::string label, std::shared_ptr<const WeightSet> weights) {
  versions_.push_back({std::move(label), std::move(weights)});
  if (versions_.size() > kept_versions_) versions_.pop_front();
}

Result<VersionCounts> VersionCheck::blocking_check(
    std::span<const std::vector<std::uint32_t>> prompts, std::span<const Rollout> rollouts,
    LogprobDifferences& differences) {
  VersionCounts counts;
  for (const Rollout& rollout : rollouts) counts.checked += rollout.tokens.size();
  std::uint64_t right = 0;
  for (std::size_t newer = 1; newer < versions_.size(); ++newer) {
    std::vector<TokenSequence> sequences;
    std::vector<Part> parts;
    for (std::size_t i = 0; i < rollouts.size(); ++i) {
      for (const VersionSpan& span : rollouts[i].versions) {
        if (span.label != versions_[newer].label) continue;
        sequences.push_back({prompts[i], rollouts[i].tokens});
        parts.push_back({&rollouts[i], span});
      }
    }
    if (sequences.empty()) continue;
    WEFT_TRY(const auto named, blocking_score(versions_[newer], sequences));
    WEFT_TRY(const auto before, blocking_score(versions_[newer - 1], sequences));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const auto& [rollout, span] = parts[i];
      for (std::size_t tok = span.begin; tok < span.end; ++tok) {
        right += same_bits(named[i][tok], rollout->logprobs[tok]) ? 1 : 0;
        counts.discriminating += same_bits(before[i][tok], named[i][tok]) ? 0 : 1;
      }
    }
    const bool is_newest = newer + 1 == versions_.size();
    if (policy_ != nullptr && !is_newest) compare(versions_[newer], sequences, parts, differences);
  }
  counts.wrong = counts.checked - right;
  return counts;
}

void VersionCheck::compare(const Version& version, std::span<const TokenSequence> sequences,
                           std::span<const Part> parts, LogprobDifferences& differences) {
  policy_->read_weights(*version.weights);
  const TokenScores scores = policy_->score(sequences);
  std::span<const double> left = scores.logprobs;
  for (const Part& part : parts) {
    differences.add(left, *part.rollout, part.span);
    left = left.subspan(part.rollout->tokens.size());
  }
}

Result<std::vector<std::vector<float>>> VersionCheck::blocking_score(
    const Version& version, std::span<const TokenSequence> sequences) {
  std::promise<void> swapped;
  engine_->swap_weights(version.weights, {.version = {version.label, version.label}},
                        [&](const SwapReport&) { swapped.set_value(); });
  swapped.get_future().wait();

  std::latch finished(static_cast<std::ptrdiff_t>(sequences.size()));
  std::vector<std::shared_ptr<PromptSink>> sinks;
  std::optional<Error> refused;
  for (const TokenSequence& sequence : sequences) {
    sinks.push_back(std::make_shared<PromptSink>(finished));
    auto submitted = engine_->submit(score_request(sequence, sinks.back()));
    if (submitted) continue;
    finished.count_down();  // the sink of a refused sequence is never called
    refused = submitted.error();
  }
  finished.wait();
  if (refused) return std::move(*refused);

  std::vector<std::vector<float>> logprobs;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (sinks[i]->error()) return *sinks[i]->error();
    const auto& prompt = sinks[i]->prompt();
    WEFT_CHECK(prompt.size() == sequences[i].prompt.size() + sequences[i].answer.size());
    auto& row = logprobs.emplace_back();
    for (std::size_t tok = sequences[i].prompt.size(); tok < prompt.size(); ++tok) {
      row.push_back(prompt[tok].chosen.logprob);
    }
  }
  return logprobs;
}

}  // namespace weft
