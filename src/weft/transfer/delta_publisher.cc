#include "weft/transfer/delta_publisher.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "weft/base/clock.h"
#include "weft/protocol/block_ledger.h"

namespace weft {

DeltaPublisher::DeltaPublisher(std::vector<http::Client*> servers, std::uint64_t max_kept_bytes)
    : max_kept_bytes_(max_kept_bytes) {
  for (http::Client* const client : servers) servers_.push_back({client});
}

std::vector<Result<PushReport>> DeltaPublisher::blocking_publish(
    std::span<const TensorView> tensors, PushOptions options, const std::vector<bool>& left_out) {
  const auto start = now();
  const auto failed = [&](const Error& error) {
    return std::vector<Result<PushReport>>(servers_.size(), error);
  };
  const auto source = MemorySource::create(tensors);
  if (!source) return failed(source.error());
  const auto digests =
      blocking_hash_source(*source, std::max(1u, std::thread::hardware_concurrency()));
  if (!digests) return failed(digests.error());
  const double hash_seconds = seconds_since(start);
  options.announce = Announce::kAlways;
  options.digests = &*digests;
  auto results = blocking_push_to_all(*source, options, left_out);
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    servers_[i].base.clear();
    if (!results[i]) continue;
    results[i]->hash_seconds = hash_seconds;
    results[i]->total_seconds += hash_seconds;
    // A converted version is no base: its bytes there are others.
    if (options.commit && !results[i]->converted) servers_[i].base = results[i]->id;
  }
  keep(tensors, *digests);
  return results;
}

std::vector<Result<PushReport>> DeltaPublisher::blocking_push_to_all(
    const TensorSource& source, const PushOptions& options, const std::vector<bool>& left_out) {
  std::vector<TensorView> views;
  for (const Kept& kept : kept_) views.push_back({kept.spec, kept.bytes});
  const auto before = MemorySource::create(views);
  std::vector<std::optional<Result<PushReport>>> results(servers_.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    if (i < left_out.size() && left_out[i]) {
      results[i] = Error(ErrorCode::kCancelled, "left out");
      continue;
    }
    const auto push = [&, i] {
      PushOptions own = options;
      own.base = before && !kept_.empty() ? servers_[i].base : "";
      own.base_source = own.base.empty() ? nullptr : &*before;
      results[i] = blocking_push(*servers_[i].client, source, own);
    };
    if (servers_.size() == 1) {
      push();
    } else {
      threads.emplace_back(push);
    }
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Result<PushReport>> all;
  for (auto& result : results) all.push_back(*std::move(result));
  return all;
}

void DeltaPublisher::keep(std::span<const TensorView> tensors, const VersionDigests& digests) {
  std::vector<Kept> before = std::exchange(kept_, {});
  std::uint64_t left_bytes = max_kept_bytes_;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [spec, bytes] = tensors[i];
    if (bytes.size() > left_bytes) continue;
    left_bytes -= bytes.size();
    const auto same = std::ranges::find_if(
        before, [&](const Kept& kept) { return kept.spec == tensors[i].spec; });
    Kept kept = same == before.end() ? Kept{spec, {}, {}} : std::move(*same);
    kept.bytes.resize(bytes.size());
    kept.blocks.resize(digests[i].size());
    for (std::size_t block = 0; block < digests[i].size(); ++block) {
      if (kept.blocks[block] == digests[i][block]) continue;
      kept.blocks[block] = digests[i][block];
      const std::size_t at = block * kBlockBytes;
      std::ranges::copy(bytes.subspan(at, std::min<std::size_t>(kBlockBytes, bytes.size() - at)),
                        kept.bytes.begin() + static_cast<std::ptrdiff_t>(at));
    }
    kept_.push_back(std::move(kept));
  }
}

std::uint64_t DeltaPublisher::kept_bytes() const {
  std::uint64_t bytes = 0;
  for (const Kept& kept : kept_) bytes += kept.bytes.size();
  return bytes;
}

}  // namespace weft
