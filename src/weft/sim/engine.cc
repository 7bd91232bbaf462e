#include "weft/sim/internal/engine.h"

#include <algorithm>
#include <utility>

#include "weft/sim/internal/rules.h"

namespace weft::sim {
namespace {

constexpr std::size_t kPlacesAtOnce = 3;

}  // namespace

Engine::Engine(Node& node, Library& library, const Content& first)
    : node_(node),
      library_(library),
      simulation_(node.simulation),
      version_{first.id(), "default"},
      content_(&first) {
  sets_[0] = first.cells;
  sets_[1].resize(first.cells.size());
  begin_token(run_);
}

void Engine::give(std::size_t set, Epoch epoch) {
  simulation_.trace(node_.name, "set {} is for staging {}", set, epoch);
  if (set == serving_) simulation_.violated(rule::kUnmoved, "the serving set was given to a push");
  for (const auto& [reader, read] : readers_) {
    if (read == set)
      simulation_.violated(rule::kTwoSets, "a set that is being read was given away");
  }
  if (is_run_on(set)) {
    simulation_.violated(rule::kTwoSets, "a set that sequences run on was given away");
  }
  given_to_[set] = epoch;
}

void Engine::write(std::size_t set, Epoch epoch, std::size_t place, std::size_t cell,
                   std::uint8_t value) {
  if (set == serving_) {
    simulation_.violated(rule::kUnmoved,
                         fmt::format("staging {} wrote into the serving set", epoch));
  }
  if (given_to_[set] != epoch) {
    simulation_.violated(rule::kFenced, fmt::format("staging {} wrote into the memory of {}", epoch,
                                                    given_to_[set]));
  }
  sets_[set][place][cell] = value;
}

void Engine::take_over(Takeover takeover) {
  const Handover& handover = takeover.handover;
  if (!taken_over_.insert(handover.epoch).second) {
    simulation_.violated(rule::kOnce, fmt::format("{} was committed twice", handover.epoch));
  }
  if (pending_) simulation_.violated(rule::kOnce, "two versions take over at once");
  pending_ = std::move(takeover);
  if (!run_->in_token) boundary();
}

void Engine::patch(std::size_t place, const Cells& cells) {
  if (!patching_) simulation_.violated(rule::kUnmoved, "a patch was written amid a token");
  sets_[serving_][place] = cells;
}

void Engine::take_back(std::function<void()> undo, VersionName version,
                       std::function<void()> done) {
  pending_undo_ = [this, undo = std::move(undo), version = std::move(version),
                   done = std::move(done)] {
    simulation_.trace(node_.name, "takes a patch back, serves {}", library_.name_of(version.id));
    patching_ = true;
    undo();
    patching_ = false;
    version_ = version;
    confirm();
    done();
  };
}

void Engine::confirm() {
  content_ = library_.try_find(version_.id);
  if (content_ == nullptr || !holds(serving_, *content_)) {
    simulation_.violated(rule::kVerified, fmt::format("{} was confirmed and is something else",
                                                      library_.name_of(version_.id)));
  }
}

void Engine::evict() {
  for (const auto& run : old_runs_) run->tokens_left = 1;
}

std::uint64_t Engine::open_reader(std::size_t set, const std::string& id) {
  const Content* const content = library_.try_find(id);
  if (content == nullptr || !holds(set, *content)) {
    simulation_.violated(rule::kTwoSets, "a version is offered to readers that is not there");
  }
  readers_.emplace(++last_reader_, set);
  return last_reader_;
}

void Engine::check() const {
  if (content_ == nullptr || simulation_.failed()) return;
  if (!holds(serving_, *content_) || version_.id != content_->id()) {
    simulation_.violated(rule::kUnmoved, fmt::format("what is served is not {}", content_->name));
  }
}

void Engine::begin_token(const std::shared_ptr<Run>& run) {
  if (run == run_) {
    run->set = serving_;
    run->version = version_;
    run->unverified = content_ == nullptr;
  }
  run->place = 0;
  run->read.clear();
  run->in_token = true;
  read_some(run);
}

void Engine::read_some(const std::shared_ptr<Run>& run) {
  const std::vector<Cells>& set = sets_[run->set];
  const std::size_t places = std::min(set.size() - run->place, kPlacesAtOnce);
  for (std::size_t i = 0; i < places; ++i) run->read.push_back(set[run->place++]);
  node_.after(simulation_.random.between(milliseconds(100), seconds(5)), [this, run] {
    if (run->place < sets_[0].size()) return read_some(run);
    end_token(run);
  });
}

void Engine::end_token(const std::shared_ptr<Run>& run) {
  const Content* const content = library_.try_find(run->version.id);
  if (!run->unverified && (content == nullptr || run->read != content->cells)) {
    simulation_.violated(rule::kOneVersion,
                         fmt::format("a token says {} and was sampled from something else",
                                     library_.name_of(run->version.id)));
  }
  run->in_token = false;
  if (run == run_) {
    boundary();
    return begin_token(run_);
  }
  if (--run->tokens_left > 0) return begin_token(run);
  std::erase(old_runs_, run);
  release();
}

bool Engine::is_run_on(std::size_t set) const {
  return std::ranges::any_of(old_runs_, [&](const auto& run) { return run->set == set; });
}

// Says of every set that is not run on any more that it is so.
void Engine::release() {
  const auto free =
      std::stable_partition(releases_.begin(), releases_.end(),
                            [&](const Release& release) { return is_run_on(release.set); });
  const std::vector<Release> now(std::make_move_iterator(free),
                                 std::make_move_iterator(releases_.end()));
  releases_.erase(free, releases_.end());
  for (const Release& release : now) release.released();
}

void Engine::boundary() {
  if (pending_undo_) std::exchange(pending_undo_, nullptr)();
  if (pending_) perform(*std::exchange(pending_, std::nullopt));
}

void Engine::perform(Takeover takeover) {
  const Handover& handover = takeover.handover;
  if (takeover.patch) {
    patching_ = true;
    const auto patched = takeover.patch();
    patching_ = false;
    if (!patched) return takeover.done(patched);
  } else if (takeover.file) {
    sets_[handover.set][Model::get().file_place()] = *takeover.file;
  }
  const std::string name = library_.name_of(handover.version.id);
  simulation_.trace(node_.name, "serves {} `{}` ({})", name, handover.version.label,
                    handover.epoch);
  const Content* const content = library_.try_find(handover.version.id);
  if (!takeover.unverified && (content == nullptr || !holds(handover.set, *content))) {
    return simulation_.violated(rule::kAllOrNothing,
                                fmt::format("the set that took over is not all of {}", name));
  }
  if (takeover.expected != nullptr && content != takeover.expected) {
    simulation_.violated(rule::kAllOrNothing, fmt::format("{} took over where {} was meant", name,
                                                          takeover.expected->name));
  }
  if (handover.set != serving_) {
    finish_on_old(handover.on_update);
    releases_.push_back({serving_, takeover.released});
  }
  serving_ = handover.set;
  version_ = handover.version;
  content_ = takeover.unverified ? nullptr : content;
  takeover.done({});
  release();
}

void Engine::finish_on_old(OnUpdate on_update) {
  if (on_update != OnUpdate::kFinish) return;
  const auto run = std::make_shared<Run>();
  run->set = serving_;
  run->version = version_;
  run->tokens_left = static_cast<unsigned>(simulation_.random.between(1, 8));
  old_runs_.push_back(run);
  begin_token(run);
}

bool Engine::holds(std::size_t set, const Content& content) const {
  return sets_[set] == content.cells;
}

}  // namespace weft::sim
