#include "weft/store/internal/upload.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "weft/base/wording.h"
#include "weft/format/safetensors.h"
#include "weft/protocol/skeleton.h"

namespace weft::store {
namespace {

Error invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

// The place of a tensor in a manifest, which is sorted by name.
std::optional<std::size_t> find_tensor(const Manifest& manifest, std::string_view name) {
  const auto found = std::ranges::lower_bound(
      manifest.tensors, name, std::less<>(),
      [](const ManifestTensor& t) -> std::string_view { return t.spec.name; });
  if (found == manifest.tensors.end() || found->spec.name != name) return std::nullopt;
  return static_cast<std::size_t>(found - manifest.tensors.begin());
}

Result<void> plan_tensors(const UploadOffer& offer, const Stored* base, PlannedUpload& plan) {
  for (const TensorSpec& offered : offer.tensors) {
    UploadEntry entry;
    entry.spec = offered;
    entry.spec.name = canonical_name(offered.name);
    if (entry.spec.name.empty()) return invalid("a tensor has no name");
    WEFT_TRY_VOID(check_safetensors_tensor(entry.spec));
    WEFT_TRY(entry.size_bytes, tensor_size_bytes(entry.spec));
    if (base != nullptr) {
      const Manifest& manifest = base->content().manifest;
      const auto found = find_tensor(manifest, entry.name());
      const bool is_same = found && manifest.tensors[*found].spec == entry.spec;
      if (is_same) entry.base_entry = found;
      if (offer.partial && !is_same) {
        return invalid(fmt::format(
            "{}: {} {}, but the base {}: a part of a version has the tensors of its base",
            entry.name(), dtype_name(entry.spec.dtype), shape_text(entry.spec.shape),
            found ? fmt::format("has {} {}", dtype_name(manifest.tensors[*found].spec.dtype),
                                shape_text(manifest.tensors[*found].spec.shape))
                  : "has no such tensor"));
      }
    }
    plan.entries.push_back(std::move(entry));
  }
  return {};
}

Result<void> plan_files(const UploadOffer& offer, PlannedUpload& plan) {
  std::uint64_t left_bytes = kMaxFilesBytes;
  for (const OfferedFile& file : offer.files) {
    if (!is_plain_file_name(file.name)) {
      return invalid(fmt::format("`{}` is no name of a file of a version", file.name));
    }
    if (file.size_bytes > left_bytes) {
      return Error(ErrorCode::kTooLarge,
                   fmt::format("{}: the files of a version have at most {} bytes together",
                               file.name, kMaxFilesBytes));
    }
    left_bytes -= file.size_bytes;
    UploadEntry entry;
    entry.spec.name = file.name;
    entry.is_file = true;
    entry.size_bytes = file.size_bytes;
    plan.entries.push_back(std::move(entry));
  }
  return {};
}

Result<void> check_names(const PlannedUpload& plan) {
  std::set<std::pair<bool, std::string_view>> names;
  for (const UploadEntry& entry : plan.entries) {
    if (!names.emplace(entry.is_file, entry.name()).second) {
      return invalid(fmt::format("`{}` comes twice", entry.name()));
    }
  }
  if (plan.base == nullptr || plan.partial) return {};
  std::vector<std::string> missing;
  for (const ManifestTensor& tensor : plan.base->content().manifest.tensors) {
    if (!names.contains({false, tensor.spec.name})) missing.push_back(tensor.spec.name);
  }
  if (missing.empty()) return {};
  const std::size_t count = missing.size();
  missing.resize(std::min<std::size_t>(count, 10));
  return invalid(fmt::format("the base has {} more ({}{}); `partial` would keep them",
                             counted(count, "tensor"), fmt::join(missing, ", "),
                             count > 10 ? ", ..." : ""));
}

Result<void> check_sizes(PlannedUpload& plan, std::uint64_t max_bytes) {
  for (std::size_t i = 0; i < plan.entries.size(); ++i) {
    const UploadEntry& entry = plan.entries[i];
    if (entry.size_bytes > max_bytes - plan.total_bytes) {
      return Error(ErrorCode::kTooLarge,
                   fmt::format("{} ({} bytes) takes the upload over the limit of {} bytes",
                               entry.name(), entry.size_bytes, max_bytes));
    }
    plan.total_bytes += entry.size_bytes;
    const std::size_t given = plan.announced[i].size();
    if (given != 0 && given != block_count(entry.size_bytes)) {
      return invalid(fmt::format("{}: {}, expected {} ({} bytes in blocks of {})", entry.name(),
                                 counted(given, "block digest"), block_count(entry.size_bytes),
                                 entry.size_bytes, kBlockBytes));
    }
  }
  return {};
}

// A version's entries while they are put together.
struct Parts {
  std::vector<std::pair<ManifestTensor, std::vector<Digest>>> tensors;
  std::vector<std::pair<ManifestFile, std::vector<Digest>>> files;
};

void add_base(const PlannedUpload& plan, Parts& parts) {
  std::set<std::pair<bool, std::string_view>> sent;
  for (const UploadEntry& entry : plan.entries) sent.emplace(entry.is_file, entry.name());
  const VersionContent& base = plan.base->content();
  std::size_t entry = 0;
  for (const ManifestTensor& tensor : base.manifest.tensors) {
    const auto& values = base.blocks[entry++];
    if (!sent.contains({false, tensor.spec.name})) parts.tensors.emplace_back(tensor, values);
  }
  for (const ManifestFile& file : base.manifest.files) {
    const auto& values = base.blocks[entry++];
    if (!sent.contains({true, file.name})) parts.files.emplace_back(file, values);
  }
}

}  // namespace

std::vector<std::uint64_t> PlannedUpload::sizes_bytes() const {
  std::vector<std::uint64_t> sizes;
  for (const UploadEntry& entry : entries) sizes.push_back(entry.size_bytes);
  return sizes;
}

bool is_announced(const PlannedUpload& plan) {
  for (std::size_t i = 0; i < plan.entries.size(); ++i) {
    if (plan.announced[i].size() != block_count(plan.entries[i].size_bytes)) return false;
  }
  return true;
}

Error being_committed() {
  return {ErrorCode::kConflict, "the upload is being committed"};
}

Result<std::shared_ptr<const PlannedUpload>> plan_store_upload(const UploadOffer& offer,
                                                               std::shared_ptr<const Stored> base,
                                                               std::uint64_t max_bytes) {
  auto plan = std::make_shared<PlannedUpload>();
  plan->partial = offer.partial;
  plan->base = std::move(base);
  if (plan->partial && !plan->base) return invalid("`partial` needs `base`");
  WEFT_TRY_VOID(plan_tensors(offer, plan->base.get(), *plan));
  WEFT_TRY_VOID(plan_files(offer, *plan));
  if (plan->entries.empty() && !plan->partial) return invalid("the upload has no tensors");
  plan->announced = offer.blocks;
  plan->announced.resize(plan->entries.size());
  WEFT_TRY_VOID(check_names(*plan));
  WEFT_TRY_VOID(check_sizes(*plan, max_bytes));
  return std::shared_ptr<const PlannedUpload>(std::move(plan));
}

std::shared_ptr<const VersionContent> compose_version(const PlannedUpload& plan,
                                                      const BlockLedger& ledger) {
  Parts parts;
  for (std::size_t i = 0; i < plan.entries.size(); ++i) {
    const UploadEntry& entry = plan.entries[i];
    const auto digests = ledger.digests(i);
    const Digest digest = merge_block_digests(digests);
    std::vector<Digest> values(digests.begin(), digests.end());
    if (entry.is_file) {
      parts.files.emplace_back(ManifestFile{entry.name(), entry.size_bytes, digest},
                               std::move(values));
    } else {
      parts.tensors.emplace_back(ManifestTensor{entry.spec, digest}, std::move(values));
    }
  }
  if (plan.partial) add_base(plan, parts);
  std::ranges::sort(parts.tensors, {}, [](const auto& each) { return each.first.spec.name; });
  std::ranges::sort(parts.files, {}, [](const auto& each) { return each.first.name; });
  Manifest manifest;
  std::vector<std::vector<Digest>> blocks;
  for (auto& [tensor, values] : parts.tensors) {
    manifest.tensors.push_back(std::move(tensor));
    blocks.push_back(std::move(values));
  }
  for (auto& [file, values] : parts.files) {
    manifest.files.push_back(std::move(file));
    blocks.push_back(std::move(values));
  }
  return make_version_content(std::move(manifest), std::move(blocks));
}

std::string staged_name(const StagedName& name) {
  return fmt::format("{}-{}-{}", name.entry, name.block, digest_hex(name.digest));
}

std::optional<StagedName> try_parse_staged_name(std::string_view text) {
  StagedName name;
  const char* const end = text.data() + text.size();
  const auto entry = std::from_chars(text.data(), end, name.entry);
  if (entry.ec != std::errc() || entry.ptr == end || *entry.ptr != '-') return std::nullopt;
  const auto block = std::from_chars(entry.ptr + 1, end, name.block);
  if (block.ec != std::errc() || block.ptr == end || *block.ptr != '-') return std::nullopt;
  const auto digest = try_parse_digest_hex(std::string_view(block.ptr + 1, end));
  if (!digest) return std::nullopt;
  name.digest = *digest;
  return name;
}

}  // namespace weft::store
