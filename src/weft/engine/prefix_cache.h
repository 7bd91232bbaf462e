#pragma once
// PrefixCache: which pages hold the keys and values of which tokens, so that a sequence that begins
// like another need not compute them again. It owns no memory of keys and values and counts
// nobody's references: what it says of a page holds until that is forgotten.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// A full page is known by its tokens and by the name of the page before it, the first one by the
// name of the weights and a salt. A name is given once and never again, and tokens are compared and
// not only hashed, so a page is never taken for another, whatever was forgotten meanwhile. One
// thread. Nothing allocates after construction, but for salts.
class PrefixCache {
 public:
  using Name = std::uint64_t;  // of a page's content and all before it; never 0

  struct Key {
    Name before = 0;                        // of the page before, or of the weights
    std::string_view salt;                  // of a first page; "" of any other
    std::span<const std::uint32_t> tokens;  // [page_tokens]
  };
  struct Found {
    std::uint32_t page = 0;
    Name name = 0;
  };

  PrefixCache(std::size_t pages, std::size_t page_tokens);

  // What the first pages of sequences with these weights come after.
  Name name_weights() { return ++last_name_; }

  std::optional<Found> try_find(const Key& key) const;
  // `page` holds it from now on. Requires: the page holds nothing, and no other page this.
  Name add(std::uint32_t page, const Key& key);
  // The page will hold something else. Of no effect where it holds nothing.
  void forget(std::uint32_t page);
  void forget_all();

  bool holds(std::uint32_t page) const { return entries_[page].name != 0; }

 private:
  struct Entry {
    Name name = 0;  // 0: holds nothing
    Name before = 0;
    std::uint32_t next = 0;  // in its bucket; kNone at the end
    std::string salt;
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  std::size_t bucket_of(const Key& key) const;
  Key key_of(std::uint32_t page) const;

  const std::size_t page_tokens_;
  Name last_name_ = 0;
  std::vector<Entry> entries_;          // [pages]
  std::vector<std::uint32_t> tokens_;   // [pages, page_tokens]
  std::vector<std::uint32_t> buckets_;  // the first page of each, or kNone; a power of two
};

}  // namespace weft
