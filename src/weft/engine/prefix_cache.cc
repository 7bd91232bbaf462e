#include "weft/engine/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "weft/base/check.h"

namespace weft {

PrefixCache::PrefixCache(std::size_t pages, std::size_t page_tokens)
    : page_tokens_(page_tokens),
      entries_(pages),
      tokens_(pages * page_tokens),
      buckets_(std::bit_ceil(pages), kNone) {}

std::optional<PrefixCache::Found> PrefixCache::try_find(const Key& key) const {
  for (std::uint32_t page = buckets_[bucket_of(key)]; page != kNone; page = entries_[page].next) {
    const Key other = key_of(page);
    if (other.before == key.before && other.salt == key.salt &&
        std::ranges::equal(other.tokens, key.tokens)) {
      return Found{page, entries_[page].name};
    }
  }
  return std::nullopt;
}

PrefixCache::Name PrefixCache::add(std::uint32_t page, const Key& key) {
  WEFT_CHECK(!holds(page));
  std::uint32_t& first = buckets_[bucket_of(key)];
  Entry& entry = entries_[page];
  entry.name = ++last_name_;
  entry.before = key.before;
  entry.salt = key.salt;
  entry.next = std::exchange(first, page);
  std::ranges::copy(key.tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(page * page_tokens_));
  return entry.name;
}

void PrefixCache::forget(std::uint32_t page) {
  if (!holds(page)) return;
  std::uint32_t* at = &buckets_[bucket_of(key_of(page))];
  while (*at != page) at = &entries_[*at].next;
  *at = entries_[page].next;
  entries_[page].name = 0;
}

void PrefixCache::forget_all() {
  for (Entry& entry : entries_) entry.name = 0;
  std::ranges::fill(buckets_, kNone);
}

// Only decides where to look. Source of the multiplier: 2^64 over the golden ratio.
std::size_t PrefixCache::bucket_of(const Key& key) const {
  const std::string_view bytes(reinterpret_cast<const char*>(key.tokens.data()),
                               key.tokens.size_bytes());
  const std::size_t hash = std::hash<std::string_view>()(bytes) ^
                           std::hash<std::string_view>()(key.salt) ^
                           key.before * 0x9E37'79B9'7F4A'7C15u;
  return hash & (buckets_.size() - 1);
}

PrefixCache::Key PrefixCache::key_of(std::uint32_t page) const {
  return {entries_[page].before, entries_[page].salt,
          std::span(tokens_).subspan(page * page_tokens_, page_tokens_)};
}

}  // namespace weft
