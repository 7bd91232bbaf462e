#include "weft/sim/internal/content.h"

#include <algorithm>

#include <fmt/core.h>

#include "weft/sim/internal/random.h"

namespace weft::sim {
namespace {

// One tensor of three blocks, the last one short; small ones, one of them empty; one that is
// exactly a block.
std::vector<TensorSpec> tensors() {
  return {{"a.weight", DType::kBF16, {2 * kBlockBytes / 2 + 3}},
          {"b.weight", DType::kBF16, {7}},
          {"empty", DType::kBF16, {0}},
          {"model.embed_tokens.weight", DType::kBF16, {kBlockBytes / 2}},
          {"z.weight", DType::kF32, {5}}};
}

// Versions share some blocks with some others, so that there is something to take over.
Cells cells_of(std::size_t version, std::size_t place) {
  const std::size_t variant = place == 0 ? version : version / (place + 1);
  Random random(variant * 64 + place);
  Cells cells;
  for (std::uint8_t& cell : cells) cell = static_cast<std::uint8_t>(random.next());
  return cells;
}

Content make_content(std::string name, std::vector<Cells> cells) {
  const Model& model = Model::get();
  std::vector<std::vector<Digest>> blocks(model.entries());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    blocks[model.places()[i].entry].push_back(digest_of_cells(cells[i]));
  }
  Manifest manifest;
  for (std::size_t i = 0; i < model.file_entry(); ++i) {
    manifest.tensors.push_back({model.layout()->tensors()[i], merge_block_digests(blocks[i])});
  }
  manifest.files.push_back({Model::kFileName, model.entry_bytes(model.file_entry()),
                            merge_block_digests(blocks.back())});
  return {std::move(name), std::move(cells),
          make_version_content(std::move(manifest), std::move(blocks))};
}

// Made once, for all schedules.
struct Made {
  std::vector<Content> versions;
  std::map<std::string, const Content*> by_id;

  Made() {
    for (std::size_t version = 0; version < Library::kCount; ++version) {
      std::vector<Cells> cells;
      for (std::size_t i = 0; i < Model::get().places().size(); ++i) {
        cells.push_back(cells_of(version, i));
      }
      versions.push_back(make_content(fmt::format("v{}", version), std::move(cells)));
    }
    for (const Content& content : versions) by_id.emplace(content.id(), &content);
  }
  static const Made& get() {
    static const Made made;
    return made;
  }
};

}  // namespace

Digest digest_of_cells(const Cells& cells) {
  return digest_of(std::as_bytes(std::span(cells)));
}

Model::Model()
    : layout_(std::make_shared<const WeightLayout>(WeightLayout::make(tensors()).value())) {
  for (std::size_t entry = 0; entry < entries(); ++entry) {
    for (std::uint64_t block = 0; block < block_count(entry_bytes(entry)); ++block) {
      places_.push_back({entry, block});
    }
  }
}

const Model& Model::get() {
  static const Model model;
  return model;
}

std::uint64_t Model::entry_bytes(std::size_t entry) const {
  return entry < file_entry() ? layout_->tensor_bytes(entry) : 1'000;
}

std::size_t Model::index_of(BlockPlace place) const {
  return static_cast<std::size_t>(std::ranges::find(places_, place) - places_.begin());
}

Library::Library() {
  static_cast<void>(Made::get());
}

const Content& Library::version(std::size_t index) const {
  return Made::get().versions.at(index);
}

const Content& Library::mixed(const Content& base, const Content& top,
                              const std::vector<bool>& entries) {
  std::vector<Cells> cells = base.cells;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (entries[Model::get().places()[i].entry]) cells[i] = top.cells[i];
  }
  if (cells == base.cells) return base;
  if (cells == top.cells) return top;
  Content content = make_content(fmt::format("{}/{}", top.name, base.name), std::move(cells));
  if (const Content* const known = try_find(content.id())) return *known;
  const std::string id = content.id();
  return *mixed_.emplace(id, std::make_unique<const Content>(std::move(content))).first->second;
}

const Content* Library::try_find(const std::string& id) const {
  if (const auto found = mixed_.find(id); found != mixed_.end()) return found->second.get();
  const auto& made = Made::get().by_id;
  const auto found = made.find(id);
  return found == made.end() ? nullptr : found->second;
}

std::string Library::name_of(const std::string& id) const {
  const Content* const content = try_find(id);
  return content ? content->name : id.substr(0, 15);
}

}  // namespace weft::sim
