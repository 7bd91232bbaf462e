#pragma once
// The versions that exist in a schedule, byte for byte, and the model they are of.
//
// The grid is the protocol's, with tensors of one block, of several and of none, and a file; of
// each block only kBlockCells bytes are modelled, and they stand for all of it: its digest is
// theirs.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/digest/digest.h"
#include "weft/format/manifest.h"
#include "weft/protocol/block_ledger.h"
#include "weft/protocol/version_content.h"
#include "weft/tensor/tensor.h"
#include "weft/tensor/weight_set.h"

namespace weft::sim {

inline constexpr std::size_t kBlockCells = 4;
using Cells = std::array<std::uint8_t, kBlockCells>;

// The value of a block that holds `cells`.
Digest digest_of_cells(const Cells& cells);

// What all versions have in common. Immutable.
class Model {
 public:
  static const Model& get();

  const std::shared_ptr<const WeightLayout>& layout() const { return layout_; }
  // The entries of a whole version: the layout's tensors, then the file.
  std::size_t entries() const { return layout_->tensors().size() + 1; }
  std::size_t file_entry() const { return layout_->tensors().size(); }
  std::uint64_t entry_bytes(std::size_t entry) const;
  // Every block of every entry, in order; the file's is the last one.
  const std::vector<BlockPlace>& places() const { return places_; }
  std::size_t index_of(BlockPlace place) const;
  std::size_t file_place() const { return places_.size() - 1; }

  static constexpr const char* kFileName = "tokenizer.json";

 private:
  Model();

  std::shared_ptr<const WeightLayout> layout_;
  std::vector<BlockPlace> places_;
};

// A version. Immutable.
struct Content {
  std::string name;          // for traces: "v3"
  std::vector<Cells> cells;  // [places]
  std::shared_ptr<const VersionContent> version;

  const std::string& id() const { return version->id; }
  const Digest& digest(BlockPlace place) const { return version->blocks[place.entry][place.block]; }
};

// The versions of one schedule: some that trainers make, and what partial pushes make of them. One
// thread.
class Library {
 public:
  static constexpr std::size_t kCount = 24;

  Library();
  // 0 is what every model folder holds.
  const Content& version(std::size_t index) const;
  // `base`, with the entries of `top` that `entries` says.
  const Content& mixed(const Content& base, const Content& top, const std::vector<bool>& entries);
  const Content* try_find(const std::string& id) const;
  // "v3", or what there is of the id.
  std::string name_of(const std::string& id) const;

 private:
  std::map<std::string, std::unique_ptr<const Content>> mixed_;  // by id
};

}  // namespace weft::sim
