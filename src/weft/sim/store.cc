#include "weft/sim/internal/store.h"

#include <iterator>
#include <utility>

#include <fmt/core.h>

#include "weft/sim/internal/rules.h"

namespace weft::sim {
namespace {

Retention some_retention(Random& random) {
  Retention retention;
  if (random.chance(70)) retention.keep_last = random.between(1, 3);
  if (random.chance(30)) retention.keep_younger = seconds(random.between(10, 200));
  return retention;
}

const char* some_name(Random& random) {
  return random.chance(50) ? "main" : "canary";
}

}  // namespace

Store::Store(Simulation& simulation_, Library& library, std::string name_)
    : Node(simulation_, std::move(name_)),
      library_(library),
      retention_(some_retention(simulation_.random)) {}

void Store::on_crash() {
  readers_.clear();
}

// What the disk has, and what the catalog on it names.
void Store::on_start() {
  catalog_ = disk_catalog_;
  ledger_ = ObjectLedger();
  for (const auto& [digest, cells] : disk_objects_) ledger_.add(digest);
  for (const auto& [id, version] : catalog_.versions()) reference(id);
  check_disk();
}

void Store::do_something() {
  switch (simulation.random.below(8)) {
    case 0:
      return read();
    case 1:
      return move_head();
    case 2:
      return pin();
    case 3:
    case 4:
      return collect();
    default:
      return push();
  }
}

void Store::check_idle() {
  if (has_jobs() || !readers_.empty()) {
    simulation.violated(rule::kLeak, "the store still does something");
  }
  check_disk();
}

Duration Store::some_time() const {
  return simulation.random.between(milliseconds(1), seconds(4));
}

bool Store::is_full() const {
  return simulation.random.chance(3);
}

std::string Store::some_version() {
  const auto& versions = catalog_.versions();
  if (versions.empty()) return "blake3:none";
  return std::next(versions.begin(),
                   static_cast<std::ptrdiff_t>(simulation.random.below(versions.size())))
      ->first;
}

void Store::push() {
  Random& random = simulation.random;
  const auto push = std::make_shared<Push>();
  push->content = &library_.version(random.below(Library::kCount));
  push->commit.version.id = push->content->id();
  push->commit.version.created_ms = static_cast<std::int64_t>(random.below(300'000));
  if (random.chance(70)) push->commit.label = fmt::format("step-{}", random.below(5));
  if (random.chance(60)) push->commit.head = some_name(random);
  if (push->commit.head && random.chance(50)) {
    const auto head = catalog_.heads().find(*push->commit.head);
    push->commit.if_match = head == catalog_.heads().end() ? "" : head->second;
  }
  for (const auto& blocks : push->content->version->blocks) {
    for (const Digest& digest : blocks) {
      if (push->found.contains(digest)) continue;
      if (ledger_.has(digest)) {
        ledger_.reference(digest);
        push->found.insert(digest);
      } else {
        push->left.push_back(digest);
      }
    }
  }
  simulation.trace(name, "takes in {}: {} blocks to come", push->content->name, push->left.size());
  stage(push);
}

void Store::stage(const std::shared_ptr<Push>& push) {
  after(some_time(), [this, push] {
    if (simulation.random.chance(2)) return end(push);  // its lease ran out
    if (push->left.empty()) {
      return post([this, push] { commit(push); });
    }
    const Digest digest = push->left.back();
    push->left.pop_back();
    if (is_full()) return end(push);
    const Model& model = Model::get();
    for (std::size_t i = 0; i < model.places().size(); ++i) {
      if (push->content->digest(model.places()[i]) == digest) {
        push->staged[digest] = push->content->cells[i];
      }
    }
    stage(push);
  });
}

// What was staged gets its name, one block after the other.
void Store::commit(const std::shared_ptr<Push>& push) {
  if (push->staged.empty()) return record(push);
  after(Duration(1'000), [this, push] {
    if (is_full()) {
      end(push);
      return job_done();
    }
    const auto [digest, cells] = *push->staged.begin();
    push->staged.erase(push->staged.begin());
    disk_objects_[digest] = cells;
    ledger_.add(digest);
    ledger_.reference(digest);
    push->found.insert(digest);
    commit(push);
  });
}

void Store::record(const std::shared_ptr<Push>& push) {
  const Catalog::Commit& commit = push->commit;
  const auto head = commit.head ? catalog_.heads().find(*commit.head) : catalog_.heads().end();
  const std::string current = head == catalog_.heads().end() ? "" : head->second;
  const bool lost = commit.head && commit.if_match && *commit.if_match != current;
  const std::string id = commit.version.id;
  const bool known = catalog_.try_find(id) != nullptr;
  reference(id);
  change([&commit](Catalog& catalog) { return catalog.commit(commit); },
         [this, push, id, lost, known](bool ok) {
           if (ok && lost) simulation.violated(rule::kHead, "a commit moved a head that had moved");
           simulation.trace(name, "{} {}", ok ? "has recorded" : "refuses", library_.name_of(id));
           if (!ok || known) release(id);
           end(push);
           job_done();
         });
}

// What it found on disk is not its any more.
void Store::end(const std::shared_ptr<Push>& push) {
  for (const Digest& digest : push->found) ledger_.release(digest);
  push->found.clear();
}

void Store::read() {
  const std::string id = some_version();
  if (catalog_.try_find(id) == nullptr) return;
  ++readers_[id];
  after(some_time(), [this, id] {
    const Content& content = *library_.try_find(id);
    const Model& model = Model::get();
    for (std::size_t i = 0; i < model.places().size(); ++i) {
      const auto object = disk_objects_.find(content.digest(model.places()[i]));
      if (object == disk_objects_.end() || object->second != content.cells[i]) {
        simulation.violated(rule::kCollected, content.name + " is gone under a reader");
      }
    }
    if (--readers_[id] == 0) readers_.erase(id);
  });
}

void Store::move_head() {
  Random& random = simulation.random;
  const std::string head = some_name(random);
  const auto found = catalog_.heads().find(head);
  std::optional<std::string> expected;
  if (random.chance(70)) expected = found == catalog_.heads().end() ? "" : found->second;
  // It comes when it comes; the head may have moved meanwhile.
  after(some_time(), [this, head, id = some_version(), expected] {
    post([this, head, id, expected] {
      const auto now = catalog_.heads().find(head);
      const std::string current = now == catalog_.heads().end() ? "" : now->second;
      change([&](Catalog& catalog) { return catalog.move_head(head, id, expected); },
             [this, lost = expected && *expected != current, head, id](bool ok) {
               if (ok && lost) simulation.violated(rule::kHead, "two won the race for " + head);
               job_done();
             });
    });
  });
}

void Store::pin() {
  post([this, id = some_version(), pinned = simulation.random.chance(60)] {
    change([&](Catalog& catalog) { return catalog.set_pin(id, pinned); },
           [this](bool) { job_done(); });
  });
}

void Store::collect() {
  post([this] {
    // The clock of the wall jumps.
    const auto now_ms = static_cast<std::int64_t>(simulation.random.below(1'000'000));
    const auto held = [this](const std::string& id) { return readers_.contains(id); };
    const auto ids = catalog_.expendable(retention_, now_ms, held);
    const auto newest = catalog_.newest_first();
    for (const std::string& id : ids) {
      bool needed = held(id) || catalog_.try_find(id)->pinned || newest.front()->id == id;
      for (const auto& [head, target] : catalog_.heads()) needed |= target == id;
      if (needed) {
        simulation.violated(rule::kCollected, library_.name_of(id) + " is let go and is needed");
      }
    }
    change(
        [&ids](Catalog& catalog) -> Result<void> {
          for (const std::string& id : ids) WEFT_TRY_VOID(catalog.remove(id));
          return {};
        },
        [this, ids](bool ok) {
          for (const std::string& id : ids) {
            if (ok) let_go(id);
          }
          delete_objects(ledger_.take_garbage());
        },
        false);
  });
}

// Its blocks are needed until the last of its readers has ended.
void Store::let_go(const std::string& id) {
  if (readers_.contains(id)) {
    return after(some_time(), [this, id] { let_go(id); });
  }
  simulation.trace(name, "lets {} go", library_.name_of(id));
  release(id);
}

void Store::delete_objects(std::vector<Digest> garbage) {
  if (garbage.empty()) return job_done();
  disk_objects_.erase(garbage.back());
  check_disk();
  garbage.pop_back();
  after(Duration(1'000), [this, garbage] { delete_objects(garbage); });
}

void Store::change(const std::function<Result<void>(Catalog&)>& change,
                   const std::function<void(bool)>& done, bool one_call) {
  Catalog next = catalog_;
  const auto changed = change(next);
  if (!changed && one_call && !(next == catalog_)) {
    simulation.violated(rule::kHead, "a call that failed has changed the catalog");
  }
  if (!changed || is_full()) return done(false);
  after(some_time(), [this, next, done] {
    disk_catalog_ = next;  // a rename: the old one or the new one
    catalog_ = next;
    check_disk();
    done(true);
  });
}

void Store::reference(const std::string& id) {
  for (const auto& blocks : library_.try_find(id)->version->blocks) {
    for (const Digest& digest : blocks) ledger_.reference(digest);
  }
}

void Store::release(const std::string& id) {
  for (const auto& blocks : library_.try_find(id)->version->blocks) {
    for (const Digest& digest : blocks) ledger_.release(digest);
  }
}

void Store::check_disk() const {
  const Model& model = Model::get();
  for (const auto& [id, version] : disk_catalog_.versions()) {
    const Content& content = *library_.try_find(id);
    for (std::size_t i = 0; i < model.places().size(); ++i) {
      const auto object = disk_objects_.find(content.digest(model.places()[i]));
      if (object != disk_objects_.end() && object->second == content.cells[i]) continue;
      simulation.violated(
          rule::kCollected,
          fmt::format("{} is recorded, and its block {} is not on disk", content.name, i));
    }
  }
  for (const auto& [head, id] : disk_catalog_.heads()) {
    if (disk_catalog_.try_find(id) == nullptr) {
      simulation.violated(rule::kHead, "the head " + head + " is of no version");
    }
  }
}

}  // namespace weft::sim
