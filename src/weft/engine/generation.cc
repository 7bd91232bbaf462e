#include "weft/engine/generation.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace weft {
namespace {

// Seeds that no other process has, each other than the last: uniform_of() makes unrelated numbers
// of neighbours.
std::uint64_t draw_seed() {
  static std::atomic<std::uint64_t> next = [] {
    std::random_device device;
    return std::uint64_t{device()} << 32 | device();
  }();
  return next.fetch_add(1, std::memory_order_relaxed);
}

Error out_of_vocabulary(std::string_view what, std::uint64_t id, std::uint64_t vocab_size) {
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: token id {} is not below the vocabulary's size {}", what, id, vocab_size));
}

Result<void> check_request(const SequenceRequest& request, std::uint64_t vocab_size,
                           std::uint64_t max_model_len) {
  if (request.prompt.empty()) return Error(ErrorCode::kInvalidArgument, "the prompt is empty");
  if (request.prompt.size() > max_model_len) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("the prompt has {} tokens, max_model_len is {}", request.prompt.size(),
                             max_model_len));
  }
  const SamplingParams& sampling = request.sampling;
  const auto check_ids = [&](std::string_view what,
                             std::span<const std::uint32_t> ids) -> Result<void> {
    const auto bad = std::ranges::find_if(ids, [&](auto id) { return id >= vocab_size; });
    if (bad != ids.end()) return out_of_vocabulary(what, *bad, vocab_size);
    return {};
  };
  WEFT_TRY_VOID(check_ids("prompt", request.prompt));
  WEFT_TRY_VOID(check_ids("stop_token_ids", sampling.stop_token_ids));
  WEFT_TRY_VOID(check_ids("allowed_token_ids", sampling.allowed_token_ids));
  for (const auto& [id, bias] : sampling.logit_bias) {
    if (id >= vocab_size) return out_of_vocabulary("logit_bias", id, vocab_size);
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Generation>> make_generation(SequenceId id, SequenceRequest request,
                                                    const ModelConfig& config,
                                                    std::uint64_t max_model_len) {
  WEFT_TRY_VOID(check_request(request, config.vocab_size, max_model_len));
  auto generation = std::make_shared<Generation>();
  generation->id = id;
  generation->seed = request.sampling.seed.value_or(0);
  if (!request.sampling.seed) generation->seed = draw_seed();
  generation->prompt_tokens = request.prompt.size();
  generation->max_total_tokens =
      request.prompt.size() +
      std::min(request.sampling.max_tokens, max_model_len - request.prompt.size());
  generation->tokens = std::move(request.prompt);
  generation->sampling = std::move(request.sampling);
  generation->sink = std::move(request.sink);
  generation->cache_salt = std::move(request.cache_salt);
  generation->on_update = request.on_update;
  if (!generation->sampling.ignore_eos) {
    generation->end_token_ids = std::move(request.end_token_ids).value_or(config.eos_token_ids);
  }
  if (generation->sampling.prompt_logprobs) {
    generation->reads_cache = false;  // the logits of every position are wanted
    generation->prompt_scores.resize(generation->prompt_tokens);
    for (std::size_t i = 0; i < generation->prompt_tokens; ++i) {
      generation->prompt_scores[i].chosen.token = generation->tokens[i];
    }
  }
  return generation;
}

}  // namespace weft
