#pragma once
// What a receiver stages, and what the sets of weights hold. Values; ReceiverMachine decides about
// them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/digest/digest.h"
#include "weft/protocol/block_ledger.h"
#include "weft/protocol/skeleton.h"
#include "weft/protocol/update_machine.h"
#include "weft/protocol/version_content.h"
#include "weft/tensor/weight_set.h"

namespace weft {

using SetIndex = std::size_t;

// Where a version comes from, as its pusher says.
struct Provenance {
  std::string parent{}, origin{};
  std::int64_t created_ms = 0;  // Unix time
};

// What one of the sets holds.
struct Resident {
  VersionName name;
  std::shared_ptr<const VersionContent> content;  // null: nothing whole
  std::vector<std::vector<Digest>> file_blocks;   // [files of the manifest]; also when converted
  Provenance provenance;
};

// One staging. Its *entries* are the tensors that are sent, the files that are sent, and the
// tensors that stay as the base has them (partial uploads), which are copied here.
struct Staging {
  Staging(UploadPlan plan_, std::vector<std::vector<Digest>> announced_, Resident served_,
          bool has_base_, SetIndex set_);

  // The values of an entry's blocks in `served`. Null: it has none, or none in this form.
  const std::vector<Digest>* served_blocks(std::uint64_t entry) const;

  // Immutable.
  Epoch epoch;  // set before anyone else sees it
  const UploadPlan plan;
  const std::vector<std::vector<Digest>> announced;  // [entries]; a list may be empty
  const Resident served;  // while this is staged; the base, where there is one
  const bool has_base;
  const SetIndex set;  // where its bytes go

  // The machine's.
  BlockLedger ledger;
  std::uint64_t patch_bytes = 0;     // of changes that are kept
  bool is_verified = true;           // no payload was kept whose result was not hashed
  std::optional<Resident> resident;  // what it is, once sealed; the name has no label yet
};

// What a staging is, once all of its blocks are there. Time in proportion to their number. Errors:
// kInvalidArgument when a tied head is not the embedding's twin; kTooLarge for files over
// kMaxFilesBytes.
Result<Resident> compose_version(const Staging& staging, const WeightLayout& layout);

}  // namespace weft
