#pragma once
// Attention of query tokens over keys and values in pages. Pure functions, no allocation; they may
// run side by side on different tokens or heads.

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::kernels {

inline constexpr std::size_t kMaxHeadDim = 256;

// What is in a page of the KV cache, for one layer: for each kv head a block of keys, then a block
// of values, fp32.
//   keys    [head_dim, page_tokens]: transposed, so that a vector holds one component of 16
//   positions and
//           scores need no sum across lanes
//   values  [page_tokens, head_dim]
// A page is one position after another of one sequence; slots that no position has reached yet may
// hold anything.
struct KvLayout {
  std::size_t kv_heads = 0;
  std::size_t head_dim = 0;      // 1 to kMaxHeadDim; fastest at multiples of 64
  std::size_t page_tokens = 16;  // a multiple of 16

  std::size_t block_floats() const { return page_tokens * head_dim; }
  std::size_t page_floats() const { return 2 * kv_heads * block_floats(); }
};

// One layer of the cache: page i is the page_floats() at pages + i * page_floats(). Align it to 64
// bytes for speed.
struct KvLayer {
  KvLayout layout;
  float* pages = nullptr;
};

// Puts one position's keys and values, each [kv_heads, head_dim], into slot `slot` (below
// page_tokens) of page `page`.
void store_kv(const KvLayer& layer, std::uint32_t page, std::size_t slot,
              std::span<const float> keys, std::span<const float> values);

// The query heads of `group` that share one kv head, for `tokens` consecutive tokens of a sequence.
// Head h of token t is the head_dim floats at queries + t * stride + h * head_dim, and is written
// over with its result.
struct QueryBlock {
  float* queries = nullptr;
  std::size_t tokens = 0;
  std::size_t stride = 0;
  std::size_t group = 0;
  std::size_t position = 0;  // of the first token
  std::size_t window = 0;    // how many positions, its own included, a token sees; 0: all
};
// Keys and values come from memory once for so many heads of tokens: blocks are best no larger.
inline constexpr std::size_t kQueryBlockHeads = 32;

// softmax(q . K * scale) . V over the positions from a token's own back to the first, or to the
// window's: position p is slot p % page_tokens of page pages[p / page_tokens]. Pages before the
// window are not read. Online softmax, 16 positions (by absolute number) at a time in order, so
// that a result depends on its own query, keys, values, position, window and scale alone: not on
// the page size, the pages' places, or the other heads and tokens.
void attention(const KvLayer& layer, std::span<const std::uint32_t> pages, std::size_t kv_head,
               float scale, const QueryBlock& block);

}  // namespace weft::kernels
