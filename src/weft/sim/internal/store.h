#pragma once
// Store: versions on a disk, under Catalog and ObjectLedger: pushes side by side, heads that race,
// retention that collects, readers, a disk that is full or loses what was not synced. One thread.
//
// The disk's steps are those of weft/store: blocks are staged, synced, linked under their digests,
// and a version counts when the catalog that names it is in place. Between any two the process may
// crash.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/protocol/catalog.h"
#include "weft/sim/internal/content.h"
#include "weft/sim/internal/network.h"

namespace weft::sim {

class Store : public Node {
 public:
  Store(Simulation& simulation, Library& library, std::string name);

  // Something that clients do: a push, a reader, a head moved, a pin, a collection.
  void do_something();
  // After all is over: nothing is held, and a collection leaves what is needed alone.
  void check_idle();

 protected:
  void on_crash() override;
  void on_start() override;

 private:
  struct Push {
    const Content* content = nullptr;
    Catalog::Commit commit;
    std::set<Digest> found;    // on disk already, referenced
    std::vector<Digest> left;  // to be staged
    std::map<Digest, Cells> staged;
  };

  void push();
  void stage(const std::shared_ptr<Push>& push);
  void commit(const std::shared_ptr<Push>& push);
  void record(const std::shared_ptr<Push>& push);
  void end(const std::shared_ptr<Push>& push);
  void read();
  void move_head();
  void pin();
  void collect();
  void let_go(const std::string& id);
  void delete_objects(std::vector<Digest> garbage);
  // Changes a copy and writes it down, then lets it count; `done` then, or at once where it fails.
  // `one_call`: of the catalog, which must then have changed nothing.
  void change(const std::function<Result<void>(Catalog&)>& change,
              const std::function<void(bool)>& done, bool one_call = true);
  void reference(const std::string& id);
  void release(const std::string& id);
  // What the catalog on disk names is on disk, byte for byte.
  void check_disk() const;
  bool is_full() const;
  std::string some_version();
  Duration some_time() const;

  Library& library_;
  const Retention retention_;
  // The disk: what a crash leaves.
  Catalog disk_catalog_;
  std::map<Digest, Cells> disk_objects_;
  // The process.
  Catalog catalog_;
  ObjectLedger ledger_;
  std::map<std::string, unsigned> readers_;  // by id
};

}  // namespace weft::sim
