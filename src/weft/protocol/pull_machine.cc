#include "weft/protocol/pull_machine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/core.h>

#include "weft/base/check.h"
#include "weft/protocol/waits.h"

namespace weft {
namespace {

// The source may answer as it should when it is asked again.
bool may_mend(ErrorCode code) {
  return is_passing(code) || code == ErrorCode::kCorrupt;
}

}  // namespace

Result<std::vector<ManifestEntry>> manifest_entries(const Manifest& manifest) {
  std::vector<ManifestEntry> entries;
  entries.reserve(manifest.tensors.size() + manifest.files.size());
  std::uint64_t left = ~0ull >> 1;
  const auto add = [&](std::string_view name, std::uint64_t size, const Digest& digest) {
    entries.push_back({name, size, digest});
    const bool fits = size <= left;
    left -= fits ? size : left;
    return fits;
  };
  bool fit = true;
  for (const ManifestTensor& tensor : manifest.tensors) {
    const auto size = tensor_size_bytes(tensor.spec);
    if (!size) return Error(ErrorCode::kCorrupt, "manifest: " + size.error().message());
    fit = add(tensor.spec.name, *size, tensor.digest) && fit;
  }
  for (const ManifestFile& file : manifest.files) {
    fit = add(file.name, file.size_bytes, file.digest) && fit;
  }
  if (!fit) return Error(ErrorCode::kCorrupt, "manifest: its sizes add up to more than 2^63");
  return entries;
}

PullMachine::PullMachine(std::string id, const Options& options)
    : id_(std::move(id)), options_(options), gone_(options.sources) {
  WEFT_CHECK(options.sources > 0);
}

void PullMachine::manifest(const Result<std::string>& json,
                           std::optional<Milliseconds> retry_after) {
  WEFT_CHECK(step_ == Step::kManifest);
  if (!json) return failed(source_, json.error(), retry_after);
  if (digest_text(digest_of(std::as_bytes(std::span(*json)))) != id_) {
    return failed(source_, Error(ErrorCode::kCorrupt, "the manifest's digest is not the id"), {});
  }
  auto parsed = parse_manifest(*json);
  if (!parsed) return fail(parsed.error());  // others would have the same
  manifest_ = std::move(*parsed);
  auto entries = manifest_entries(manifest_);
  if (!entries) return fail(entries.error());
  entries_ = std::move(*entries);
  first_block_.assign(1, 0);
  for (const ManifestEntry& entry : entries_) {
    total_bytes_ += entry.size_bytes;
    first_block_.push_back(first_block_.back() +
                           static_cast<std::size_t>(block_count(entry.size_bytes)));
  }
  step_ = Step::kBlocks;
}

void PullMachine::blocks(const Result<std::string>& list, std::optional<Milliseconds> retry_after) {
  WEFT_CHECK(step_ == Step::kBlocks);
  if (!list) return failed(source_, list.error(), retry_after);
  if (auto taken = take_list(*list); !taken) return failed(source_, taken.error(), {});
  wrong_.assign(digests_.size(), 0);
  cut_parts();
  step_ = parts_.empty() ? Step::kDone : Step::kFetch;
}

Result<void> PullMachine::take_list(std::string_view list) {
  digests_.resize(first_block_.back());
  if (list.size() != digests_.size() * sizeof(Digest)) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("the block list has {} bytes, {} blocks have {}", list.size(),
                             digests_.size(), digests_.size() * sizeof(Digest)));
  }
  if (!list.empty()) std::memcpy(digests_.data(), list.data(), list.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (merge_block_digests(digests(i)) == entries_[i].digest) continue;
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("the block list of {} does not merge into its digest", entries_[i].name));
  }
  return {};
}

// Every block in one part, or two where a pack ends inside it.
void PullMachine::cut_parts() {
  std::uint64_t at = 0;
  first_part_.clear();
  for (std::size_t entry = 0; entry < entries_.size(); ++entry) {
    left_blocks_.push_back(static_cast<std::size_t>(block_count(entries_[entry].size_bytes)));
    for (std::uint64_t block = 0; block < block_count(entries_[entry].size_bytes); ++block) {
      first_part_.push_back(parts_.size());
      const std::uint64_t size = block_length(entries_[entry].size_bytes, block);
      const BlockPlace place{entry, block};
      for (std::uint64_t done = 0; done < size;) {
        const std::uint64_t piece = std::min(size - done, kPackBytes - at % kPackBytes);
        parts_.push_back({{place, done, piece, piece == size}, at});
        done += piece;
        at += piece;
      }
    }
  }
  first_part_.push_back(parts_.size());
}

std::size_t PullMachine::block_index(const BlockPlace& place) const {
  const std::size_t index = first_block_.at(place.entry) + place.block;
  WEFT_CHECK(index < first_block_.at(place.entry + 1));
  return index;
}

std::span<PullMachine::Part> PullMachine::parts_of(const BlockPlace& place) {
  const std::size_t index = block_index(place);
  return std::span(parts_).subspan(first_part_[index], first_part_[index + 1] - first_part_[index]);
}

std::span<const Digest> PullMachine::digests(std::size_t entry) const {
  return std::span(digests_).subspan(first_block_.at(entry),
                                     first_block_.at(entry + 1) - first_block_.at(entry));
}

void PullMachine::hold(const BlockPlace& place) {
  WEFT_CHECK(step_ == Step::kFetch && under_way_ == 0);
  if (parts_of(place).front().state == State::kVerified) return;
  verify(place);
  held_bytes_ += block_length(entries_[place.entry].size_bytes, place.block);
}

void PullMachine::verify(const BlockPlace& place) {
  for (Part& part : parts_of(place)) part.state = State::kVerified;
  verified_bytes_ += block_length(entries_[place.entry].size_bytes, place.block);
  if (--left_blocks_[place.entry] == 0) complete_.push_back(place.entry);
  if (verified_bytes_ == total_bytes_ && under_way_ == 0) step_ = Step::kDone;
}

std::optional<PullMachine::Fetch> PullMachine::take() {
  WEFT_CHECK(step_ == Step::kFetch);
  if (failed_) return std::nullopt;
  while (next_ < parts_.size() && parts_[next_].state != State::kOpen) ++next_;
  if (next_ == parts_.size()) return std::nullopt;
  ++under_way_;
  ++last_fetch_;
  const BlockPlace place = parts_[next_].piece.place;
  return wrong_[block_index(place)] % 2 == 1 ? fetch_by_digest(place) : fetch_from_pack(next_);
}

// Whoever cached a wrong pack has other bytes under another name, maybe.
PullMachine::Fetch PullMachine::fetch_by_digest(const BlockPlace& place) {
  Fetch fetch;
  fetch.number = last_fetch_;
  const std::uint64_t entry_bytes = entries_[place.entry].size_bytes;
  fetch.source = alive_source(source_ + wrong_[block_index(place)]);
  fetch.by_digest = true;
  fetch.begin_bytes = place.block * kBlockBytes;
  fetch.size_bytes = block_length(entry_bytes, place.block);
  fetch.is_all = fetch.size_bytes == entry_bytes;
  fetch.pieces.push_back({place, 0, fetch.size_bytes, true});
  for (Part& part : parts_of(place)) part.take(fetch.number);
  return fetch;
}

PullMachine::Fetch PullMachine::fetch_from_pack(std::size_t first_part) {
  Fetch fetch;
  const std::uint64_t begin = parts_[first_part].begin_bytes;
  fetch.number = last_fetch_;
  fetch.source = alive_source(source_ + wrong_[block_index(parts_[first_part].piece.place)]);
  fetch.pack = begin / kPackBytes;
  fetch.begin_bytes = begin % kPackBytes;
  for (std::size_t i = first_part; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    const bool goes_on = part.state == State::kOpen &&
                         part.begin_bytes / kPackBytes == fetch.pack &&
                         (i == first_part || wrong_[block_index(part.piece.place)] == 0);
    if (!goes_on) break;
    part.take(fetch.number);
    fetch.pieces.push_back(part.piece);
    fetch.size_bytes += part.piece.size_bytes;
  }
  fetch.is_all = fetch.begin_bytes == 0 &&
                 fetch.size_bytes == std::min(kPackBytes, total_bytes_ - fetch.pack * kPackBytes);
  return fetch;
}

bool PullMachine::arrived(const Piece& piece) {
  const auto parts = parts_of(piece.place);
  for (Part& part : parts) {
    if (piece.is_whole || part.piece.offset_bytes == piece.offset_bytes) part.state = State::kHere;
  }
  return std::ranges::all_of(parts, [](const Part& part) { return part.state == State::kHere; });
}

bool PullMachine::checked(const BlockPlace& place, const Digest& digest) {
  const std::size_t index = block_index(place);
  if (digest == digests_[index]) {
    verify(place);
    return true;
  }
  ++corrupt_;
  for (Part& part : parts_of(place)) part.state = State::kOpen;
  next_ = std::min(next_, first_part_[index]);
  count_wrong(place, ErrorCode::kCorrupt, "its bytes are not those of its digest");
  return false;
}

void PullMachine::count_wrong(const BlockPlace& place, ErrorCode code, std::string_view why) {
  if (++wrong_[block_index(place)] <= options_.corrupt_limit || error_) return;
  error_ = Error(code, fmt::format("{}: block {}: {}, {} times", entries_[place.entry].name,
                                   place.block, why, options_.corrupt_limit + 1));
  failed_ = error_;
}

void PullMachine::fetched(const Fetch& fetch, const Result<void>& answer,
                          std::optional<Milliseconds> retry_after) {
  WEFT_CHECK(step_ == Step::kFetch && under_way_ > 0);
  for (const Piece& piece : fetch.pieces) {
    for (Part& part : parts_of(piece.place)) {
      if (part.state != State::kTaken || part.taken_by != fetch.number) continue;
      part.state = State::kOpen;
      next_ = std::min(next_, first_part_[block_index(piece.place)]);
    }
  }
  --under_way_;
  if (!answer && fetch.by_digest && !may_mend(answer.error().code())) {
    count_wrong(fetch.pieces.front().place, answer.error().code(), answer.error().message());
  } else if (!answer) {
    failed(fetch.source, answer.error(), retry_after);
  }
  if (under_way_ == 0) end_round();
}

void PullMachine::failed(std::size_t source, const Error& error,
                         std::optional<Milliseconds> retry_after) {
  const bool passes = may_mend(error.code());
  if (!passes) gone_[source] = true;
  if (!failed_ || !passes) failed_ = error;
  failed_retry_after_ = retry_after;
  if (step_ != Step::kFetch) end_round();
}

// All fetches of the round are back.
void PullMachine::end_round() {
  if (error_) return fail(Error(*error_));
  if (step_ == Step::kFetch && verified_bytes_ == total_bytes_) {
    step_ = Step::kDone;
    return;
  }
  if (!failed_) return;
  const Error error = *std::exchange(failed_, std::nullopt);
  if (std::ranges::all_of(gone_, [](bool gone) { return gone; })) return fail(error);
  if (verified_bytes_ > best_verified_bytes_) tries_ = 0;
  best_verified_bytes_ = verified_bytes_;
  ++resumed_;
  then_ = step_;
  if (const auto wish = std::exchange(failed_retry_after_, std::nullopt)) {
    wait_ = std::clamp(*wish, options_.first_wait, kLongestWish);
    waited_ += wait_;
    if (waited_ > options_.patience) return fail(error);
  } else {
    if (++tries_ > options_.retries) return fail(error);
    wait_ = wait_after(tries_, options_.first_wait);
  }
  source_ = alive_source(source_ + 1);
  step_ = Step::kWait;
}

std::size_t PullMachine::alive_source(std::size_t from) const {
  for (std::size_t i = 0; i < gone_.size(); ++i) {
    const std::size_t source = (from + i) % gone_.size();
    if (!gone_[source]) return source;
  }
  return source_;
}

void PullMachine::waited() {
  WEFT_CHECK(step_ == Step::kWait);
  step_ = then_;
}

void PullMachine::give_up(const Error& error) {
  WEFT_CHECK(under_way_ == 0);
  fail(error);
}

void PullMachine::fail(const Error& error) {
  error_ = error;
  step_ = Step::kFailed;
}

}  // namespace weft
