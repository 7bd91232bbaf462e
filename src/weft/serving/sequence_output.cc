#include "weft/serving/sequence_output.h"

#include <algorithm>
#include <utility>

namespace weft {
namespace {

// A decoder that stands after `prompt`: some tokenizers write a first token differently (without
// its leading space). Where the last prompt token leaves half a character, the output is decoded
// for itself.
IncrementalDecoder decoder_after(const Tokenizer& tokenizer, const Prompt& prompt,
                                 bool skip_special) {
  IncrementalDecoder decoder(tokenizer, skip_special);
  if (prompt.ids.empty()) return decoder;
  const auto shown = decoder.push(prompt.ids.back());
  if (!shown || shown->empty()) return IncrementalDecoder(tokenizer, skip_special);
  return decoder;
}

}  // namespace

bool ends_sequence(const GenerationRequest& request, const ServedModel& model,
                   std::uint32_t token) {
  const SamplingParams& sampling = request.sampling;
  return (!sampling.ignore_eos && model.is_end_token(token)) ||
         std::ranges::find(sampling.stop_token_ids, token) != sampling.stop_token_ids.end();
}

SequenceOutput::SequenceOutput(const GenerationRequest& request, const Prompt& prompt,
                               const ServedModel& model)
    : request_(&request),
      prompt_(&prompt),
      model_(&model),
      filter_(request.stop, request.include_stop_in_output) {
  // Ids in and ids out needs no text unless a stop string has to be found in it.
  const bool needs_text = request.api != Api::kGenerate || !request.stop.empty();
  if (needs_text && model.tokenizer != nullptr) {
    decoder_ = decoder_after(*model.tokenizer, prompt, request.skip_special_tokens);
  }
}

void SequenceOutput::add_prompt(std::vector<ScoredToken> scored) {
  prompt_scores_ = std::move(scored);
  for (std::size_t i = 0; i < prompt_scores_.size(); ++i)
    prompt_scores_[i].chosen.token = prompt_->ids[i];
}

void SequenceOutput::add_token(TokenEvent event) {
  if (finished() || request_->prompt_only) return;
  cached_tokens_ = event.cached_tokens;
  const std::uint64_t at = tokens_.size();
  if (versions_.empty() || *versions_.back().version != *event.version) {
    versions_.push_back({std::move(event.version), at, at});
  }
  versions_.back().end = at + 1;
  event.scored.chosen.token = event.token;
  tokens_.push_back(std::move(event.scored));
  add_text(event.token);
}

void SequenceOutput::add_text(std::uint32_t token) {
  if (!decoder_) return;
  if (ends_sequence(*request_, *model_, token) && !request_->include_stop_in_output) return;
  const auto piece = decoder_->push(token);
  if (!piece) return;
  text_ += filter_.push(*piece, tokens_.size() > request_->sampling.min_tokens);
  if (stopped_by_text()) finish_.emplace().reason = FinishReason::kStop;
}

void SequenceOutput::flush_text() {
  if (!decoder_) return;
  if (const auto rest = decoder_->finish()) text_ += filter_.push(*rest, true);
  text_ += filter_.finish();
}

void SequenceOutput::finish(FinishEvent event) {
  if (finished()) return;
  cached_tokens_ = event.cached_tokens;
  flush_text();
  if (request_->prompt_only && event.reason == FinishReason::kStop) {
    event.reason = FinishReason::kLength;
    event.stop_token.reset();
  }
  // The last half character may have completed a stop string.
  if (stopped_by_text()) event.reason = FinishReason::kStop;
  finish_ = std::move(event);
}

}  // namespace weft
