#include "weft/engine/cache_size.h"

#include <algorithm>
#include <thread>

#include <fmt/core.h>
#include <unistd.h>

#include "weft/base/log.h"

namespace weft {
namespace {

std::uint64_t pages_of(std::uint64_t tokens, std::uint64_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

std::uint64_t memory_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

Result<CacheSize> choose_sizes(const ModelConfig& config, EngineOptions& options) {
  if (options.threads == 0) options.threads = std::max(1u, std::thread::hardware_concurrency());
  constexpr std::uint64_t kMost = 1'000'000;
  if (options.max_num_seqs - 1 >= kMost || options.max_num_batched_tokens - 1 >= kMost) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("max_num_seqs and max_num_batched_tokens must be 1 to {}", kMost));
  }
  if (options.page_tokens == 0 || options.page_tokens % 16 != 0) {
    return Error(ErrorCode::kInvalidArgument, "page_tokens must be a multiple of 16");
  }
  constexpr std::uint64_t kMaxTokens = 1 << 30;
  if (options.max_model_len > kMaxTokens) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("--max-model-len {}: at most {} tokens",
                                                          options.max_model_len, kMaxTokens));
  }
  const std::uint64_t physical_bytes = memory_bytes();
  if (options.kv_cache_bytes > physical_bytes) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("--kv-cache-memory {}: the machine has {} bytes of memory",
                             options.kv_cache_bytes, physical_bytes));
  }
  CacheSize size;
  size.layout = {config.num_kv_heads, config.head_dim, options.page_tokens};
  const std::uint64_t page_bytes = config.num_layers * size.layout.page_floats() * sizeof(float);
  const bool length_given = options.max_model_len != 0;
  if (!length_given) options.max_model_len = config.max_position_embeddings;
  constexpr std::uint64_t kMaxPages = UINT32_MAX;
  const std::uint64_t wanted = std::min(
      options.max_num_seqs * pages_of(options.max_model_len, options.page_tokens), kMaxPages);
  if (options.kv_cache_bytes == 0) {
    // A quarter of the machine: two weight sets and a trainer want the rest. Only pages in use are
    // touched.
    options.kv_cache_bytes = std::min(wanted * page_bytes, physical_bytes / 4);
  }
  size.pages = std::min(wanted, options.kv_cache_bytes / page_bytes);
  const std::uint64_t fitting = size.pages * options.page_tokens;
  if (fitting == 0 || (length_given && fitting < options.max_model_len)) {
    return Error(
        ErrorCode::kOverloaded,
        fmt::format("a KV cache of {} bytes holds {} tokens, but --max-model-len is {}, which "
                    "needs {} bytes; the machine has {}",
                    options.kv_cache_bytes, fitting, options.max_model_len,
                    pages_of(options.max_model_len, options.page_tokens) * page_bytes,
                    physical_bytes));
  }
  if (fitting < options.max_model_len) {
    log_info("max_model_len is {} and not {}: no more fits into a KV cache of {} bytes", fitting,
             options.max_model_len, options.kv_cache_bytes);
    options.max_model_len = fitting;
  }
  options.max_num_batched_tokens =
      std::min(options.max_num_batched_tokens, options.max_num_seqs * options.max_model_len);
  return size;
}

}  // namespace weft
