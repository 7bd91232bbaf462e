#include "weft/protocol/staging.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/core.h>

namespace weft {
namespace {

// The files of a version: those that were sent, and the serving version's others.
struct Files {
  std::vector<ManifestFile> files;
  std::vector<std::vector<Digest>> blocks;
};
Result<Files> compose_files(const Staging& staging) {
  std::map<std::string, std::pair<ManifestFile, std::vector<Digest>>> by_name;
  const auto& own = staging.served.content->manifest.files;
  for (std::size_t i = 0; i < own.size(); ++i) {
    by_name[own[i].name] = {own[i], staging.served.file_blocks[i]};
  }
  for (std::size_t i = 0; i < staging.plan.files.size(); ++i) {
    const OfferedFile& file = staging.plan.files[i];
    const auto digests = staging.ledger.digests(staging.plan.tensors.size() + i);
    by_name[file.name] = {{file.name, file.size_bytes, merge_block_digests(digests)},
                          {digests.begin(), digests.end()}};
  }
  Files files;
  std::uint64_t total_bytes = 0;
  for (auto& [name, file] : by_name) {
    total_bytes += file.first.size_bytes;
    files.files.push_back(std::move(file.first));
    files.blocks.push_back(std::move(file.second));
  }
  if (total_bytes <= kMaxFilesBytes) return files;
  return Error(ErrorCode::kTooLarge, fmt::format("the version's files have {} bytes, at most {}",
                                                 total_bytes, kMaxFilesBytes));
}

// Where the model ties the head to the embedding, and it came: it must be equal.
Result<void> check_tied_head(const Staging& staging) {
  std::optional<Digest> head, embedding;
  for (std::size_t i = 0; i < staging.plan.tensors.size(); ++i) {
    const PlannedTensor& tensor = staging.plan.tensors[i];
    if (!tensor.target) head = merge_block_digests(staging.ledger.digests(i));
    if (tensor.spec.name == kEmbeddingName)
      embedding = merge_block_digests(staging.ledger.digests(i));
  }
  if (head && !embedding && staging.served.content) {
    for (const ManifestTensor& tensor : staging.served.content->manifest.tensors) {
      if (tensor.spec.name == kEmbeddingName) embedding = tensor.digest;
    }
  }
  if (!head || head == embedding) return {};
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "{} differs from {}, to which this model ties it: send equal bytes, or leave it out",
          kHeadName, kEmbeddingName));
}

}  // namespace

Staging::Staging(UploadPlan plan_, std::vector<std::vector<Digest>> announced_, Resident served_,
                 bool has_base_, SetIndex set_)
    : plan(std::move(plan_)),
      announced([&] {
        announced_.resize(plan.offered());
        for (const std::size_t tensor : plan.kept)
          announced_.push_back(served_.content->blocks[tensor]);
        return std::move(announced_);
      }()),
      served(std::move(served_)),
      has_base(has_base_),
      set(set_),
      ledger(plan.sizes_bytes) {}

const std::vector<Digest>* Staging::served_blocks(std::uint64_t entry) const {
  if (const auto index = plan.try_file(entry)) {
    const auto& own = served.content->manifest.files;
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (own[i].name == plan.files[*index].name &&
          own[i].size_bytes == plan.files[*index].size_bytes)
        return &served.file_blocks[i];
    }
    return nullptr;
  }
  const auto target = plan.try_target(entry);
  const bool convert = entry < plan.tensors.size() && plan.tensors[entry].convert;
  if (!target || convert || served.content->blocks.empty()) return nullptr;
  return &served.content->blocks[*target];
}

Result<Resident> compose_version(const Staging& staging, const WeightLayout& layout) {
  WEFT_TRY_VOID(check_tied_head(staging));
  WEFT_TRY(Files files, compose_files(staging));
  Manifest manifest;
  manifest.tensors.resize(layout.tensors().size());
  std::vector<std::vector<Digest>> blocks(layout.tensors().size());
  for (std::uint64_t entry = 0; entry < staging.plan.sizes_bytes.size(); ++entry) {
    const auto target = staging.plan.try_target(entry);
    if (!target) continue;
    const auto digests = staging.ledger.digests(entry);
    const bool is_sent = entry < staging.plan.tensors.size();
    manifest.tensors[*target] = {
        is_sent ? staging.plan.tensors[entry].spec : layout.tensors()[*target],
        merge_block_digests(digests)};
    blocks[*target].assign(digests.begin(), digests.end());
  }
  manifest.files = std::move(files.files);
  blocks.insert(blocks.end(), files.blocks.begin(), files.blocks.end());
  if (staging.plan.converted) blocks.clear();
  Resident resident;
  resident.content = make_version_content(std::move(manifest), std::move(blocks));
  resident.file_blocks = std::move(files.blocks);
  resident.name = {resident.content->id, "", staging.plan.converted};
  return resident;
}

}  // namespace weft
