#include "weft/transfer/host_target.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <utility>

#include <fmt/core.h>

#include "weft/digest/digest.h"

namespace weft {
namespace {

// Waits for a callback.
template <typename T>
Result<T> blocking_result(const std::function<void(UploadHost::Done<T>)>& call) {
  std::promise<Result<T>> promise;
  call([&](Result<T> result) { promise.set_value(std::move(result)); });
  return promise.get_future().get();
}

}  // namespace

// The values of all blocks, held to the manifest's digests.
Result<std::vector<std::vector<Digest>>> HostTarget::blocking_block_list(
    std::span<const ManifestEntry> entries) const {
  http::Request request;
  request.method = "GET";
  request.target = "/weft/v1/versions/" + id_ + "/blocks";
  WEFT_TRY(const http::Response response, source_.blocking_send(request));
  if (response.status != 200) {
    return Error(code_of_http_status(response.status),
                 fmt::format("{}: no block list of {}", source_.server().text(), id_));
  }
  std::string_view rest = response.body;
  std::vector<std::vector<Digest>> blocks;
  for (const ManifestEntry& entry : entries) {
    auto& list = blocks.emplace_back(static_cast<std::size_t>(block_count(entry.size_bytes)));
    const std::size_t list_bytes = list.size() * sizeof(Digest);
    if (rest.size() >= list_bytes) {
      std::memcpy(list.data(), rest.data(), list_bytes);
      rest.remove_prefix(list_bytes);
    }
    if (merge_block_digests(list) == entry.digest) continue;
    return Error(ErrorCode::kCorrupt, fmt::format("{}: the block list of {} is wrong at {}",
                                                  source_.server().text(), id_, entry.name));
  }
  return blocks;
}

Result<bool> HostTarget::blocking_prepare(const std::string& id, const Manifest& manifest) {
  id_ = id;
  WEFT_TRY(const auto entries, manifest_entries(manifest));
  for (const ManifestEntry& entry : entries) sizes_bytes_.push_back(entry.size_bytes);
  UploadOffer offer;
  for (const ManifestTensor& tensor : manifest.tensors) offer.tensors.push_back(tensor.spec);
  for (const ManifestFile& file : manifest.files) {
    offer.files.push_back({file.name, file.size_bytes});
  }
  WEFT_TRY(offer.blocks, blocking_block_list(entries));
  offer.skeleton = digest_of(std::as_bytes(std::span(id)));  // same version, same upload
  WEFT_TRY(const UploadProgress progress,
           blocking_result<UploadProgress>([&](UploadHost::Done<UploadProgress> done) {
             host_.open_upload(owner_, std::move(offer), std::move(done));
           }));
  epoch_ = progress.epoch;
  return false;
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
  WEFT_TRY(const auto writer,
           host_.claim(*epoch_, place.entry, place.block, Encoding::kIdentity, block.size()));
  if (writer->found() == BlockLedger::Claim::kVerified) return {};
  while (!block.empty()) {
    const std::span<std::byte> into = writer->buffer();
    const std::size_t size = std::min(into.size(), block.size());
    if (size == 0) break;
    std::memcpy(into.data(), block.data(), size);
    WEFT_TRY_VOID(writer->filled(size));
    block = block.subspan(size);
  }
  const auto settled = writer->settle(std::nullopt);
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
                                        http::Client& source, const std::string& id) {
  HostTarget target(host, source, owner);
  const auto report = blocking_pull(source, id, target);
  if (report) return PulledUpload{*target.epoch(), target.sealed_id()};
  if (target.epoch()) host.fail(*target.epoch(), report.error());
  return report.error();
}

}  // namespace weft
