#include "weft/transfer/host_target.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <utility>

#include "weft/base/log.h"
#include "weft/codec/delta_codec.h"
#include "weft/digest/digest.h"
#include "weft/protocol/pull_machine.h"
#include "weft/transfer/delta_puller.h"
#include "weft/transfer/version_blocks.h"

namespace weft {
namespace {

// Waits for a callback.
template <typename T>
Result<T> blocking_result(const std::function<void(UploadHost::Done<T>)>& call) {
  std::promise<Result<T>> promise;
  call([&](Result<T> result) { promise.set_value(std::move(result)); });
  return promise.get_future().get();
}

// The blocks that no run has. Requires: the runs are in order.
std::vector<BlockPlace> blocks_outside(std::span<const BlockLedger::Run> runs,
                                       std::span<const std::uint64_t> sizes_bytes) {
  std::vector<BlockPlace> places;
  auto run = runs.begin();
  for (std::uint64_t entry = 0; entry < sizes_bytes.size(); ++entry) {
    for (std::uint64_t block = 0; block < block_count(sizes_bytes[entry]); ++block) {
      const BlockPlace place{entry, block};
      while (run != runs.end() && BlockPlace{run->tensor, run->first_block + run->blocks} <= place)
        ++run;
      const bool is_outside =
          run == runs.end() || place < BlockPlace{run->tensor, run->first_block};
      if (is_outside) places.push_back(place);
    }
  }
  return places;
}

// Null where there is none that can be a base. Errors: kOverloaded where it is not the time.
Result<std::unique_ptr<VersionBlocks>> open_head(VersionSource& source) {
  for (const Head& head : source.heads()) {
    auto blocks = open_blocks(source, head.id);
    if (blocks || blocks.error().code() == ErrorCode::kOverloaded) return blocks;
  }
  return std::unique_ptr<VersionBlocks>();
}

}  // namespace

Result<PullTarget::Held> HostTarget::blocking_prepare(const std::string& id,
                                                      const Manifest& manifest,
                                                      const VersionDigests& digests) {
  WEFT_TRY(const auto entries, manifest_entries(manifest));
  for (const ManifestEntry& entry : entries) sizes_bytes_.push_back(entry.size_bytes);
  UploadOffer offer;
  for (const ManifestTensor& tensor : manifest.tensors) offer.tensors.push_back(tensor.spec);
  if (base_ != nullptr) offer.base = base_->content().id;
  for (const ManifestFile& file : manifest.files) {
    offer.files.push_back({file.name, file.size_bytes});
  }
  offer.blocks = digests;
  offer.skeleton = digest_of(std::as_bytes(std::span(id)));  // same version, same upload
  WEFT_TRY(const UploadProgress progress,
           blocking_result<UploadProgress>([&](UploadHost::Done<UploadProgress> done) {
             host_.open_upload(owner_, std::move(offer), std::move(done));
           }));
  epoch_ = progress.epoch;
  if (progress.patch_mode && base_ != nullptr) {
    content_ = make_version_content(manifest, digests);
    pair_.emplace(base_->content(), *content_);
  }
  return Held{blocks_outside(progress.missing, sizes_bytes_)};
}

std::span<std::byte> HostTarget::place(std::size_t entry, std::uint64_t offset_bytes,
                                       std::span<std::byte> scratch) {
  const BlockPlace block{entry, offset_bytes / kBlockBytes};
  const std::uint64_t length = block_length(sizes_bytes_.at(entry), block.block);
  if (scratch.size() == length) return scratch;
  const std::lock_guard lock(mutex_);
  Half& half = halves_[block];
  half.bytes.resize(static_cast<std::size_t>(length));
  return std::span(half.bytes)
      .subspan(static_cast<std::size_t>(offset_bytes % kBlockBytes), scratch.size());
}

Result<void> HostTarget::blocking_write(std::size_t entry, std::uint64_t offset_bytes,
                                        std::span<const std::byte> bytes) {
  const BlockPlace block{entry, offset_bytes / kBlockBytes};
  const std::uint64_t length = block_length(sizes_bytes_.at(entry), block.block);
  if (bytes.size() == length) return blocking_settle(block, bytes);
  std::span<const std::byte> whole;
  {
    const std::lock_guard lock(mutex_);
    Half& half = halves_.at(block);
    half.filled_bytes += bytes.size();
    if (half.filled_bytes < length) return {};
    half.filled_bytes = 0;  // it may come again
    whole = half.bytes;     // nodes of a map stay where they are
  }
  return blocking_settle(block, whole);
}

// Bytes that are wrong leave the block open: whoever pulls finds that out too, and asks again.
Result<void> HostTarget::blocking_settle(const BlockPlace& place,
                                         std::span<const std::byte> block) {
  if (!pair_ || place.entry >= content_->manifest.tensors.size()) {
    return blocking_hand_over(place, Encoding::kIdentity, block, std::nullopt);
  }
  WEFT_TRY(const auto changes, blocking_changes(place, block));
  const Digest value = block_digest(sizes_bytes_[place.entry], place.block, block);
  return blocking_hand_over(place, Encoding::kDelta, changes, value);
}

// Patch mode: what the block changes of the base.
Result<std::vector<std::byte>> HostTarget::blocking_changes(const BlockPlace& place,
                                                            std::span<const std::byte> block) {
  const auto entry = pair_->try_base_entry(place.entry);
  if (!entry) {
    return Error(
        ErrorCode::kConflict,
        fmt::format("{}: what serves has no such tensor of this dtype and shape, and there "
                    "is no memory for a second set",
                    block_words(*content_, place)));
  }
  std::vector<std::byte> scratch(block.size());
  WEFT_TRY(const auto old, base_->blocking_read({*entry, place.block}, scratch));
  return encode_delta(old, block, delta_kind(content_->manifest, place.entry));
}

Result<void> HostTarget::blocking_hand_over(const BlockPlace& place, Encoding encoding,
                                            std::span<const std::byte> payload,
                                            const std::optional<Digest>& value) {
  WEFT_TRY(const auto writer,
           host_.claim(*epoch_, place.entry, place.block, encoding, payload.size()));
  if (writer->found() == BlockLedger::Claim::kVerified) return {};
  while (!payload.empty()) {
    const std::span<std::byte> into = writer->buffer();
    const std::size_t size = std::min(into.size(), payload.size());
    if (size == 0) break;
    std::memcpy(into.data(), payload.data(), size);
    WEFT_TRY_VOID(writer->filled(size));
    payload = payload.subspan(size);
  }
  const auto settled = writer->settle(value);
  if (!settled && settled.error().code() != ErrorCode::kCorrupt) return settled.error();
  return {};
}

// Asked once for each block that came in two parts, when both are there.
Result<std::span<const std::byte>> HostTarget::blocking_read(std::size_t entry,
                                                             std::uint64_t offset_bytes,
                                                             std::span<std::byte> scratch) const {
  const std::lock_guard lock(mutex_);
  const auto half = halves_.find({entry, offset_bytes / kBlockBytes});
  if (half == halves_.end() || half->second.bytes.size() != scratch.size()) {
    return Error(ErrorCode::kInternal, "only what has just been written can be read again");
  }
  std::ranges::copy(half->second.bytes, scratch.begin());
  halves_.erase(half);
  return std::span<const std::byte>(scratch);
}

Result<void> HostTarget::blocking_finish() {
  WEFT_TRY(const SealedVersion sealed,
           blocking_result<SealedVersion>([&](UploadHost::Done<SealedVersion> done) {
             host_.seal(owner_, *epoch_, std::move(done));
           }));
  sealed_id_ = sealed.id;
  return {};
}

Result<PulledUpload> blocking_pull_into(UploadHost& host, const std::string& owner,
                                        http::Client& source, const std::string& id,
                                        VersionSource* own) {
  std::string delta_failure;
  std::unique_ptr<VersionBlocks> base;
  if (own != nullptr) {
    WEFT_TRY(base, open_head(*own));
  }
  if (base) {
    HostTarget target(host, owner, base.get());
    auto pull = blocking_pull_deltas(source, id, *base, target);
    if (!pull) {
      if (target.epoch()) host.fail(*target.epoch(), pull.error());
      return pull.error();
    }
    if (pull->report) return PulledUpload{*target.epoch(), target.sealed_id(), pull->deltas, ""};
    delta_failure = std::move(pull->why_not);
    if (!delta_failure.empty()) {
      log_warning("{}: no deltas to {}, but all of it: {}", owner, id, delta_failure);
    }
  }
  // The same version of the same owner: it is the same upload, where that is open.
  HostTarget target(host, owner, base.get());
  const auto report = blocking_pull(source, id, target);
  if (report) return PulledUpload{*target.epoch(), target.sealed_id(), 0, delta_failure};
  if (target.epoch()) host.fail(*target.epoch(), report.error());
  return report.error();
}

}  // namespace weft
