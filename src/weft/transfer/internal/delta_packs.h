#pragma once
// The packs of a delta, fetched when a payload of theirs is wanted.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/result.h"
#include "weft/format/delta_index.h"
#include "weft/http/client.h"

namespace weft::internal {

// GETs under /weft/v1, again where the connection breaks. Thread-safe.
class DeltaFetcher {
 public:
  DeltaFetcher(http::Client& source, unsigned retries, std::chrono::milliseconds first_wait)
      : source_(source), retries_(retries), first_wait_(first_wait) {}

  // The body. Blocks. Errors: the source's; kDisconnected and its like after all retries.
  Result<std::string> blocking_get(const std::string& path) const;
  // The same into all of `out`. Errors: kCorrupt for a body of another length.
  Result<void> blocking_get_into(const std::string& path, std::span<std::byte> out) const;

 private:
  http::Client& source_;
  const unsigned retries_;
  const std::chrono::milliseconds first_wait_;
};

// At most two packs are in memory: payloads are wanted about in order. Thread-safe.
class DeltaPacks {
 public:
  // `path` of the delta; the fetcher and the index must outlive this.
  DeltaPacks(const DeltaFetcher& fetcher, std::string path, const DeltaIndex& index)
      : fetcher_(fetcher),
        path_(std::move(path)),
        index_(index),
        places_(delta_payload_places(index)) {}

  // The payload of a row, in `scratch`, which has its size. Blocks. Errors: the source's; kCorrupt
  // for a pack with another digest than the index has.
  Result<std::span<const std::byte>> blocking_read(std::size_t row, std::span<std::byte> scratch);
  std::uint64_t fetched_bytes() const;

 private:
  using Pack = std::shared_ptr<const std::vector<std::byte>>;

  Result<Pack> blocking_pack(std::size_t pack);
  Result<Pack> blocking_fetch(std::size_t pack) const;

  const DeltaFetcher& fetcher_;
  const std::string path_;
  const DeltaIndex& index_;
  const std::vector<DeltaPackCut::Place> places_;  // [rows]

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable fetched_;
  std::deque<std::pair<std::size_t, Pack>> kept_;  // the latest in front
  std::set<std::size_t> under_way_;
  std::uint64_t fetched_bytes_ = 0;
};

}  // namespace weft::internal
