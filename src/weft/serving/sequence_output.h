#pragma once
// SequenceOutput: what one sequence has produced so far, tokens and text, collected from the
// engine's events. No socket and no JSON. One thread.
//
// Which tokens count: all that were sampled up to the end, the end token or the token that
// completed a stop string included; ids, log-probabilities and usage are equally long. Which text
// counts: without the end token or stop token, and up to the stop string.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/engine/request.h"
#include "weft/serving/generation_request.h"
#include "weft/serving/served_model.h"
#include "weft/serving/stop_filter.h"

namespace weft {

// Output tokens [start, end) were sampled from `version`.
struct VersionSpan {
  std::shared_ptr<const VersionName> version;
  std::uint64_t start = 0, end = 0;
};

// Whether `token` is an end token or stop token that ends a sequence. min_tokens keeps these from
// being sampled early.
bool ends_sequence(const GenerationRequest& request, const ServedModel& model, std::uint32_t token);

class SequenceOutput {
 public:
  // All must outlive this.
  SequenceOutput(const GenerationRequest& request, const Prompt& prompt, const ServedModel& model);

  // One for each prompt token.
  void add_prompt(std::vector<ScoredToken> scored);
  // After finished(), further events are ignored.
  void add_token(TokenEvent event);
  void finish(FinishEvent event);

  // True once nothing more is to come: the engine said so, or a stop string was found (then the
  // engine has to be told).
  bool finished() const { return finish_.has_value(); }
  bool stopped_by_text() const { return filter_.matched().has_value(); }

  const Prompt& prompt() const { return *prompt_; }
  const std::string& text() const { return text_; }  // grows; what is held back is not in it
  const std::vector<ScoredToken>& tokens() const { return tokens_; }
  const std::vector<ScoredToken>& prompt_scores() const { return prompt_scores_; }
  const std::vector<VersionSpan>& versions() const { return versions_; }
  // Prompt tokens whose keys and values were there already.
  std::uint64_t cached_tokens() const { return cached_tokens_; }
  // Requires: finished().
  const FinishEvent& end() const { return *finish_; }
  const std::optional<std::string>& stop_text() const { return filter_.matched(); }

 private:
  void add_text(std::uint32_t token);
  void flush_text();

  const GenerationRequest* request_;
  const Prompt* prompt_;
  const ServedModel* model_;
  std::optional<IncrementalDecoder> decoder_;  // nothing where there is no tokenizer
  StopFilter filter_;
  std::string text_;
  std::vector<ScoredToken> tokens_, prompt_scores_;
  std::vector<VersionSpan> versions_;
  std::uint64_t cached_tokens_ = 0;
  std::optional<FinishEvent> finish_;
};

}  // namespace weft
