#include "weft/transfer/delta_maker.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "weft/base/check.h"
#include "weft/transfer/delta_object.h"
#include "weft/transfer/internal/crew.h"

namespace weft {
namespace {

using Payload = std::vector<std::byte>;

// Makes the payload of one block after the other. One thread.
class BlockEncoder {
 public:
  BlockEncoder(const VersionBlocks& base, const VersionBlocks& target, const DeltaPair& pair,
               const DeltaMakeOptions& options)
      : base_(base),
        target_(target),
        pair_(pair),
        options_(options),
        memory_(new std::byte[3 * kBlockBytes]) {}

  Result<Payload> blocking_encode(const BlockPlace& place) {
    const Manifest& manifest = pair_.target().manifest;
    const auto length = static_cast<std::size_t>(
        block_length(entry_size_bytes(manifest, place.entry), place.block));
    WEFT_TRY(const auto base, blocking_read_base(place, length));
    WEFT_TRY(const auto next, blocking_read(target_, place, memory(1, length)));
    const ElemKind kind = delta_kind(manifest, place.entry);
    Payload payload = encode_delta(base, next, kind, options_.goal);
    if (options_.trusted) return payload;
    const auto proof = memory(2, length);
    const auto decoded = decode_delta(payload, base, kind, proof);
    if (decoded && std::memcmp(proof.data(), next.data(), length) == 0) return payload;
    return Error(ErrorCode::kInternal,
                 fmt::format("delta of {}: it does not decode into the block: {}",
                             block_words(pair_.target(), place),
                             decoded ? "another came out" : decoded.error().message()));
  }

 private:
  std::span<std::byte> memory(std::size_t which, std::size_t length) {
    return {memory_.get() + which * kBlockBytes, length};
  }

  Result<std::span<const std::byte>> blocking_read_base(const BlockPlace& place,
                                                        std::size_t length) {
    const auto scratch = memory(0, length);
    if (const auto entry = pair_.try_base_entry(place.entry)) {
      return blocking_read(base_, {*entry, place.block}, scratch);
    }
    std::ranges::fill(scratch, std::byte{0});
    return std::span<const std::byte>(scratch);
  }

  // What is made of a block that is not the version's would be of no use to anybody.
  Result<std::span<const std::byte>> blocking_read(const VersionBlocks& version,
                                                   const BlockPlace& place,
                                                   std::span<std::byte> scratch) const {
    WEFT_TRY(const auto bytes, version.blocking_read(place, scratch));
    if (options_.trusted) return bytes;
    const VersionContent& content = version.content();
    const std::uint64_t entry_bytes = entry_size_bytes(content.manifest, place.entry);
    if (block_digest(entry_bytes, place.block, bytes) == content.blocks[place.entry][place.block]) {
      return bytes;
    }
    return Error(ErrorCode::kCorrupt,
                 fmt::format("{}: its bytes have another digest", block_words(content, place)));
  }

  const VersionBlocks& base_;
  const VersionBlocks& target_;
  const DeltaPair& pair_;
  const DeltaMakeOptions& options_;
  std::unique_ptr<std::byte[]> memory_;
};

class Maker {
 public:
  Maker(const VersionBlocks& base, const VersionBlocks& target, const DeltaPayloadSink& sink,
        const DeltaMakeOptions& options)
      : base_(base),
        target_(target),
        sink_(sink),
        options_(options),
        pair_(base.content(), target.content()),
        blocks_(pair_.changed_blocks()) {
    index_.base = try_parse_digest(base.content().id).value();
    index_.target = try_parse_digest(target.content().id).value();
  }

  Result<DeltaIndex> blocking_run() {
    const unsigned threads = std::max(1u, options_.threads);
    window_ = 2 * std::size_t{threads};
    crew_.blocking_run(
        threads, "weft-delta", [this](std::unique_lock<std::mutex>& lock) { work(lock); },
        [this] {
          if (options_.progress) options_.progress(taken_, blocks_.size());
        });
    if (failed_) return *std::move(failed_);
    if (!index_.packs.empty()) index_.packs.back().digest = hasher_.finish();
    return std::move(index_);
  }

 private:
  // Payloads are made in any order and taken in theirs, by whichever thread comes; no more wait
  // than the window has.
  void work(std::unique_lock<std::mutex>& lock) {
    BlockEncoder encoder(base_, target_, pair_, options_);
    while (!failed_ && taken_ < blocks_.size()) {
      if (const auto ready = ready_.find(taken_); ready != ready_.end() && !taking_) {
        blocking_take(ready_.extract(ready).mapped(), lock);
      } else if (next_ < std::min(blocks_.size(), taken_ + window_)) {
        blocking_encode(encoder, next_++, lock);
      } else {
        crew_.blocking_wait(lock);
      }
    }
  }

  void blocking_encode(BlockEncoder& encoder, std::size_t at, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    auto payload = options_.cancelled && options_.cancelled()
                       ? Error(ErrorCode::kCancelled, "the delta was given up")
                       : encoder.blocking_encode(blocks_[at]);
    lock.lock();
    if (payload) {
      ready_.emplace(at, *std::move(payload));
    } else if (!failed_) {
      failed_ = std::move(payload).error();
    }
    crew_.change();
  }

  void blocking_take(const Payload& payload, std::unique_lock<std::mutex>& lock) {
    taking_ = true;
    lock.unlock();
    auto taken = blocking_append(payload);
    lock.lock();
    taking_ = false;
    ++taken_;
    if (!taken && !failed_) failed_ = std::move(taken).error();
    crew_.change();
  }

  // Only whoever set `taking_` is here.
  Result<void> blocking_append(const Payload& payload) {
    const auto size_bytes = static_cast<std::uint32_t>(payload.size());
    const std::size_t pack = cut_.add(size_bytes).pack;
    if (pack == index_.packs.size()) {
      if (pack > 0) index_.packs.back().digest = std::exchange(hasher_, Hasher()).finish();
      index_.packs.emplace_back();
    }
    const BlockPlace& place = blocks_[index_.blocks.size()];
    index_.blocks.push_back({static_cast<std::uint32_t>(place.entry),
                             static_cast<std::uint32_t>(place.block), size_bytes,
                             pair_.target().blocks[place.entry][place.block]});
    index_.packs.back().size_bytes += size_bytes;
    bytes_ += size_bytes;
    hasher_.update(payload);
    if (bytes_ + delta_index_bytes(index_.packs.size(), blocks_.size()) > options_.limit_bytes) {
      return Error(ErrorCode::kTooLarge, fmt::format("delta of version {}: over {} bytes",
                                                     pair_.target().id, options_.limit_bytes));
    }
    return sink_(pack, payload);
  }

  const VersionBlocks& base_;
  const VersionBlocks& target_;
  const DeltaPayloadSink& sink_;
  const DeltaMakeOptions& options_;
  const DeltaPair pair_;
  const std::vector<BlockPlace> blocks_;
  std::size_t window_ = 0;
  // Of whoever takes.
  DeltaIndex index_;
  DeltaPackCut cut_;
  Hasher hasher_;
  std::uint64_t bytes_ = 0;

  internal::Crew crew_;  // its lock is held for what follows
  std::optional<Error> failed_;
  std::size_t next_ = 0, taken_ = 0;
  bool taking_ = false;
  std::map<std::size_t, Payload> ready_;
};

}  // namespace

Result<DeltaIndex> blocking_make_delta(const VersionBlocks& base, const VersionBlocks& target,
                                       const DeltaPayloadSink& sink,
                                       const DeltaMakeOptions& options) {
  return Maker(base, target, sink, options).blocking_run();
}

}  // namespace weft
