#pragma once
// Attention of one query token over keys and values in pages. Pure functions, no allocation; they
// may run side by side on different tokens or heads.

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

// softmax(q . K * scale) . V over positions [begin, end) of a sequence: position p is slot p %
// page_tokens of page pages[p / page_tokens]. begin is above 0 for a sliding window; pages before
// it are not read. `queries` and `out` are [group, head_dim]: the query heads that share `kv_head`;
// out may be queries. Requires begin < end. Online softmax, 16 positions (by absolute number) at a
// time in order, so that a result depends on its own query, keys, values, begin and scale alone:
// not on the page size, the pages' places, or the other heads.
void attention(const KvLayer& layer, std::span<const std::uint32_t> pages, std::size_t begin,
               std::size_t end, std::size_t kv_head, std::span<const float> queries, float scale,
               std::span<float> out);

}  // namespace weft::kernels
