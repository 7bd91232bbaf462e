#pragma once
// One upload of a store: what it brings, held against its base, and the version that comes of it.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/protocol/block_ledger.h"
#include "weft/protocol/update_machine.h"
#include "weft/store/internal/archive.h"
#include "weft/transfer/upload_host.h"

namespace weft::store {

// A tensor or a file, as it is sent.
struct UploadEntry {
  TensorSpec spec;  // of a file only the name
  bool is_file = false;
  std::uint64_t size_bytes = 0;
  std::optional<std::size_t> base_entry;  // a tensor of the base with this name, dtype and shape

  const std::string& name() const { return spec.name; }
};

// What an upload will be. Immutable.
struct PlannedUpload {
  std::vector<UploadEntry> entries;            // tensors, then files, as frames number them
  std::vector<std::vector<Digest>> announced;  // [entries]; a list is empty or complete
  bool partial = false;
  std::shared_ptr<const Stored> base;
  std::uint64_t total_bytes = 0;

  std::vector<std::uint64_t> sizes_bytes() const;
};

// Are the digests of all blocks known?
bool is_announced(const PlannedUpload& plan);

// Checks an offer. Errors: kInvalidArgument naming the entry and what was expected; kTooLarge over
// `max_bytes`.
Result<std::shared_ptr<const PlannedUpload>> plan_store_upload(const UploadOffer& offer,
                                                               std::shared_ptr<const Stored> base,
                                                               std::uint64_t max_bytes);

// The version: what came, and of a partial upload the rest from its base. Requires: all blocks of
// `ledger` are verified.
std::shared_ptr<const VersionContent> compose_version(const PlannedUpload& plan,
                                                      const BlockLedger& ledger);

Error being_committed();

// Each upload has a machine of its own, with one staging.
inline constexpr Epoch kOnlyEpoch = 1;

struct Upload {
  Upload(Epoch epoch_, std::string owner_, std::filesystem::path staging_,
         std::chrono::milliseconds lease)
      : epoch(epoch_), owner(std::move(owner_)), staging(std::move(staging_)), machine(lease) {}

  const Epoch epoch;
  const std::string owner;
  const std::filesystem::path staging;  // its folder, with a file for each verified block

  // The rest is the intake's, under its lock.
  UpdateMachine machine;
  std::shared_ptr<const PlannedUpload> plan;  // until the upload is over
  std::optional<BlockLedger> ledger;
  std::vector<Digest> taken;                      // objects found on disk, that it counts on
  std::shared_ptr<const VersionContent> content;  // once sealed
  bool committing = false;
  std::optional<CommitRequest> committed;  // with `report`
  CommitReport report;
};

// The file of a verified block: "12-3-<hex>", in the staging folder.
struct StagedName {
  std::uint64_t entry = 0, block = 0;
  Digest digest;
};
std::string staged_name(const StagedName& name);
std::optional<StagedName> try_parse_staged_name(std::string_view text);

}  // namespace weft::store
