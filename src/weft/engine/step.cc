// One step: what it computes, and what each sequence gets of it.

#include <algorithm>
#include <utility>

#include "weft/engine/engine_impl.h"

namespace weft {

void EngineImpl::step(std::span<const Slice> slices) {
  const auto begin = Clock::now();
  start(slices);
  for (std::span<Slice> rest = slices_; !rest.empty();) {
    const auto set = static_cast<Generation*>(rest.front().sequence)->set;
    const auto others = std::stable_partition(rest.begin(), rest.end(), [&](const Slice& slice) {
      return static_cast<Generation*>(slice.sequence)->set == set;
    });
    const auto count = static_cast<std::size_t>(others - rest.begin());
    compute(rest.first(count), set->weights);
    rest = rest.subspan(count);
  }
  scheduler_.complete();
  std::span<LogitsUse> uses = uses_;
  for (const Slice& slice : slices_) {
    const auto other = std::ranges::find_if(
        uses, [&](const LogitsUse& use) { return use.generation != slice.sequence; });
    const auto count = static_cast<std::size_t>(other - uses.begin());
    hand_out(slice, uses.first(count));
    uses = uses.subspan(count);
  }
  step_end_ = Clock::now();
  ++counters_.steps;
  counters_.step_seconds += std::chrono::duration<double>(step_end_ - begin).count();
}

// Those that begin take the weights that are served now.
void EngineImpl::start(std::span<const Slice> slices) {
  slices_.assign(slices.begin(), slices.end());
  uses_.clear();
  for (const Slice& slice : slices) {
    auto& generation = static_cast<Generation&>(*slice.sequence);
    if (!leave_queue(generation)) continue;
    generation.set = current_;
    // So that no decode step allocates.
    generation.tokens.reserve(generation.max_total_tokens);
    generation.pages.reserve(generation.max_total_tokens / options_.page_tokens + 1);
    counters_.prompt_tokens += generation.prompt_tokens;
  }
}

void EngineImpl::compute(std::span<const Slice> slices, const ModelWeights& weights) {
  first_use_ = uses_.size();
  make_batch(slices);
  forward_.run(weights, batch_, *this);
}

// All tokens of the slices, and which of them need logits: the last of a sequence to go on, and
// those of a prompt that is to be scored.
void EngineImpl::make_batch(std::span<const Slice> slices) {
  batch_.clear();
  for (const Slice& slice : slices) {
    auto& generation = static_cast<Generation&>(*slice.sequence);
    for (std::uint64_t position = slice.begin; position < slice.end; ++position) {
      const bool samples = position + 1 == generation.tokens.size() && !generation.is_full();
      const bool scores = generation.wants_prompt_scores() &&
                          position >= generation.prompt_rows_scored &&
                          position + 1 < generation.prompt_tokens;
      if (samples || scores) {
        batch_.logit_rows.push_back(static_cast<std::uint32_t>(batch_.tokens.size()));
        uses_.push_back({&generation, position, samples, {}, {}});
      }
      batch_.tokens.push_back({generation.tokens[position], position, generation.pages});
    }
  }
}

// On a worker's thread.
void EngineImpl::on_logits(unsigned worker, std::size_t row, std::span<const float> logits) {
  LogitsUse& use = uses_[first_use_ + row];
  const Generation& generation = *use.generation;
  Sampler& sampler = samplers_[worker];
  auto scored =
      use.samples ? sampler.sample(logits, {generation.sampling, generation.seed, generation.tokens,
                                            generation.prompt_tokens, generation.end_token_ids})
                  : sampler.score(logits, generation.tokens[use.position + 1],
                                  *generation.sampling.prompt_logprobs);
  if (scored) {
    use.scored = std::move(*scored);
  } else {
    use.error = std::move(scored).error();
  }
}

// Tells a sequence what the step gave it. It may have ended after that.
void EngineImpl::hand_out(const Slice& slice, std::span<LogitsUse> uses) {
  auto& generation = static_cast<Generation&>(*slice.sequence);
  for (LogitsUse& use : uses) {
    if (use.error) {
      finish(generation, {.reason = FinishReason::kError, .error = std::move(use.error)});
      return;
    }
    if (use.samples) continue;
    generation.prompt_scores[use.position + 1] = std::move(use.scored);
    generation.prompt_rows_scored = use.position + 1;
  }
  if (!slice.reaches_end()) return;
  const auto version = generation.set->version;
  if (generation.wants_prompt_scores()) {
    generation.prompt_reported = true;
    generation.reads_cache = true;
    generation.sink->on_prompt(std::move(generation.prompt_scores), version);
  }
  if (generation.is_full()) {  // no token was asked for
    finish(generation, {.reason = FinishReason::kLength});
    return;
  }
  const std::uint32_t token = uses.back().scored.chosen.token;
  generation.tokens.push_back(token);
  ++counters_.generation_tokens;
  generation.sink->on_token({token, std::move(uses.back().scored), version, generation.cached});
  if (auto end = try_end(generation, token)) finish(generation, std::move(*end));
}

std::optional<FinishEvent> EngineImpl::try_end(const Generation& generation,
                                               std::uint32_t token) const {
  const auto is_in = [token](std::span<const std::uint32_t> ids) {
    return std::ranges::find(ids, token) != ids.end();
  };
  if (is_in(generation.end_token_ids) || is_in(generation.sampling.stop_token_ids)) {
    return FinishEvent{.reason = FinishReason::kStop, .stop_token = token};
  }
  if (generation.is_full()) return FinishEvent{.reason = FinishReason::kLength};
  return std::nullopt;
}

}  // namespace weft
