#include "weft/sim/internal/puller.h"

#include <algorithm>
#include <cstring>

#include <fmt/core.h>

#include "weft/sim/internal/rules.h"

namespace weft::sim {
namespace {

std::string manifest_of(const VersionContent& content) {
  return content.manifest_json;
}

std::string block_list_of(const VersionContent& content) {
  std::string list;
  for (const auto& blocks : content.blocks) {
    list.append(reinterpret_cast<const char*>(blocks.data()), blocks.size() * sizeof(Digest));
  }
  return list;
}

// What a server says with its 503.
template <typename T>
std::optional<milliseconds> retry_after(const Result<T>& answer) {
  if (answer || answer.error().code() != ErrorCode::kOverloaded) return std::nullopt;
  return milliseconds(1'000);
}

}  // namespace

Puller::Puller(Simulation& simulation_, Network& network, Library& library,
               std::vector<Source*> sources, std::string name_)
    : Node(simulation_, std::move(name_)),
      network_(network),
      library_(library),
      sources_(std::move(sources)) {}

void Puller::pull(const std::string& id) {
  PullMachine::Options options;
  options.sources = sources_.size();
  machine_ = std::make_unique<PullMachine>(id, options);
  ++pulls_;
  holding_ = false;
  cells_.resize(Model::get().places().size());
  simulation.trace(name, "pulls {}", library_.name_of(id));
  next();
}

void Puller::next() {
  switch (machine_->step()) {
    case Step::kManifest:
      return ask("manifest", manifest_of, &PullMachine::manifest);
    case Step::kBlocks:
      return ask("blocks", block_list_of, &PullMachine::blocks);
    case Step::kFetch:
      if (!std::exchange(holding_, true)) hold();
      return machine_->step() == Step::kFetch ? fetch() : next();
    case Step::kWait:
      return after(machine_->wait(), [this, pull = pulls_] {
        if (!machine_ || pull != pulls_) return;
        machine_->waited();
        next();
      });
    case Step::kDone:
    case Step::kFailed:
      return end();
  }
}

void Puller::ask(const char* what, std::string (*part)(const VersionContent&),
                 void (PullMachine::*hear)(const Result<std::string>&,
                                           std::optional<PullMachine::Milliseconds>)) {
  Source& source = *sources_[machine_->source()];
  network_.call<std::string>(
      *this, source, fmt::format("GET {} of {}", what, library_.name_of(machine_->id())),
      [this, &source, part, id = machine_->id()](const auto& reply) {
        const auto content = source.content_of(id);
        if (!content) return reply(content.error());
        std::string text = part(**content);
        Random& random = simulation.random;
        if (random.chance(network_.faults.corrupted)) text[random.below(text.size())] ^= 1;
        reply(text);
      },
      [this, hear, pull = pulls_](const Result<std::string>& text) {
        if (!machine_ || pull != pulls_) return;
        (machine_.get()->*hear)(text, retry_after(text));
        next();
      });
}

// Blocks of the version before that the new one has too.
void Puller::hold() {
  if (has_ == nullptr) return;
  const Model& model = Model::get();
  const auto before = has_->cells;
  for (std::size_t i = 0; i < model.places().size(); ++i) {
    const BlockPlace place = model.places()[i];
    if (digest_of_cells(before[i]) != machine_->digests(place.entry)[place.block]) continue;
    cells_[i] = before[i];
    machine_->hold(place);
  }
}

void Puller::fetch() {
  for (int connection = 0; connection < 2; ++connection) {
    const auto taken = machine_->take();
    if (!taken) return;
    std::vector<std::size_t> places;
    for (const auto& piece : taken->pieces) places.push_back(Model::get().index_of(piece.place));
    Source& source = *sources_[taken->source];
    const auto mine = [this, pull = pulls_] { return machine_ && pull == pulls_; };
    network_.fetch(
        *this, source, fmt::format("{} blocks from {}", places.size(), source.name),
        [&source, id = machine_->id(), places] { return source.open_download(id, places); },
        [this, mine, fetch = *taken](std::size_t index, const auto& bytes) {
          if (mine()) take(fetch, index, bytes);
        },
        [this, mine, fetch = *taken](const Result<bool>& result) {
          if (!mine()) return;
          machine_->fetched(fetch, result ? Result<void>() : result.error(), retry_after(result));
          next();
        });
  }
}

void Puller::take(const PullMachine::Fetch& fetch, std::size_t index,
                  const std::vector<std::uint8_t>& bytes) {
  const auto& piece = fetch.pieces[index];
  Cells& cells = cells_[Model::get().index_of(piece.place)];
  std::ranges::copy(bytes, cells.begin());
  if (machine_->arrived(piece)) machine_->checked(piece.place, digest_of_cells(cells));
}

void Puller::end() {
  const bool is_done = machine_->step() == Step::kDone;
  simulation.trace(name, "{} {}{}", is_done ? "has" : "gives up", library_.name_of(machine_->id()),
                   is_done ? "" : ": " + machine_->error().message());
  if (is_done) {
    has_ = library_.try_find(machine_->id());
    if (has_ == nullptr || cells_ != has_->cells) {
      simulation.violated(rule::kPulled, fmt::format("{} came as something else",
                                                     library_.name_of(machine_->id())));
    }
  } else if (!has_) {
    cells_.clear();
  }
  machine_.reset();
}

}  // namespace weft::sim
