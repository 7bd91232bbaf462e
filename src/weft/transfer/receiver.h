#pragma once
// The receiving side: the data plane's routes, and the transaction that takes an upload from its
// first byte to being served. The rules are those of protocol/update_machine.h; this gives them
// sockets and memory.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/server.h"
#include "weft/tensor/on_update.h"
#include "weft/tensor/weight_set.h"
#include "weft/transfer/receiver_metrics.h"
#include "weft/transfer/state_dir.h"
#include "weft/transfer/upload_host.h"
#include "weft/transfer/version_source.h"

namespace weft {

// The files of a version that are not tensors, by name: "config.json".
using ModelFiles = std::map<std::string, std::string>;

// What takes over a staged set. Implemented by serving over the engine. Thread-safe.
class WeightTarget {
 public:
  virtual ~WeightTarget() = default;

  struct Takeover {
    VersionName version;
    OnUpdate on_update = OnUpdate::kContinue;
    bool is_rollback = false;  // it served before, and what came after it is taken back
    // Of the version, complete; null when they are what is served already.
    std::shared_ptr<const ModelFiles> files{};
    // Called once, from any thread, when nobody reads the set that was served before any more:
    // best before `done`, since whoever hears of a commit may send the next version; with kFinish
    // when the last sequence on it has ended.
    std::function<void()> released = [] {};
  };
  struct Committed {
    std::uint64_t stall_us = 0;
  };
  using Done = std::function<void(Result<Committed>)>;
  // Makes `weights` what is served, at a token boundary; calls `done` once, from any thread.
  virtual void commit(std::shared_ptr<const WeightSet> weights, Takeover takeover, Done done) = 0;
  // Calls `patch` at a token boundary, while no step runs: it writes over the set that is served.
  // Where it fails, it has put the old values back, the old version serves on, and `done` gets its
  // error. kFinish is kUnsupported.
  virtual void commit_in_place(std::function<Result<void>()> patch, Takeover takeover,
                               Done done) = 0;
  // Makes sequences that still end on the retired set go on with the serving one (recompute), so
  // that released() comes soon.
  virtual void evict_retired() = 0;
  // May these files take over? Errors: kConflict naming the file and the key.
  virtual Result<void> check_files(const ModelFiles& files) = 0;
  virtual void rename(VersionName version) = 0;
  virtual VersionName current() const = 0;
};

// How a staged version comes to be served.
enum class CommitMode {
  kAutomatic,  // a second set where there is memory for one, else patches
  kSet,        // a second set and a pointer that moves
  kPatch,      // what changes is written over the serving set
};

// When the digests of a patched set are checked.
enum class Verify {
  kFull,        // before the commit
  kBackground,  // after it; the patch's own digest and the old values before
};

struct ReceiverOptions {
  std::chrono::seconds lease{300};  // an update that hears nothing for so long is dropped
  std::chrono::milliseconds reader_grace{5'000};  // of readers of a set about to be overwritten
  bool tied_embeddings = false;  // a pushed lm_head.weight must equal the embedding, and is dropped
  OnUpdate on_update = OnUpdate::kContinue;  // where a commit does not say
  OnThird on_third = OnThird::kWait;
  CommitMode commit_mode = CommitMode::kAutomatic;
  std::uint64_t memory_limit_bytes = 0;  // kAutomatic: of both sets; 0: what the machine has free
  std::uint64_t max_patch_bytes = 0;  // that one upload may hold in patch mode; 0: a tenth of a set
  Verify verify = Verify::kBackground;
  std::shared_ptr<const ModelFiles> files;  // of what is served at the start; null: none
  // What is committed is kept here; what it has saved must be what is served at the start. Null:
  // it is not kept.
  std::shared_ptr<StateDir> state;
};

// Thread-safe.
class Receiver {
 public:
  // `serving` is what the target serves now; the second set is allocated here. Hashes what is
  // served and tells `target` its id through rename(). `target` must outlive this, and this the
  // server of its routes. Blocks. Errors: kOverloaded with the numbers when there is no memory for
  // the second set that kSet asks for; kInvalidArgument for kFinish without one; as
  // StateDir::check_saved.
  static Result<std::unique_ptr<Receiver>> blocking_create(std::shared_ptr<WeightSet> serving,
                                                           WeightTarget& target,
                                                           ReceiverOptions options);
  virtual ~Receiver() = default;

  // All of the data plane, /weft/v1/...: docs/protocol.md.
  virtual std::vector<http::Route> routes() = 0;
  // The same without HTTP, for who pulls from elsewhere into this server, and for who hands out
  // what it has. The source lives as long as this.
  virtual std::shared_ptr<UploadHost> upload_host() = 0;
  virtual VersionSource& source() = 0;

  // The same machine, driven by vLLM's control routes; `owner` from Weft-Session or "anonymous".
  // Each calls `done` once, from any thread. Order errors are kConflict.
  using Done = std::function<void(Result<void>)>;
  virtual void start_update(const std::string& owner, Done done) = 0;
  // Has this owner an update open, so that what is fetched from elsewhere may be staged?
  virtual Result<void> check_started(const std::string& owner) = 0;
  // Stages the safetensors file or folder at `path`; nothing: what was pushed (or nothing at all)
  // is it.
  virtual void update(const std::string& owner, std::optional<std::string> path, Done done) = 0;
  // An update() whose source may not be read: closes the owner's update, as when staging fails.
  virtual void refuse_update(const std::string& owner, const Error& error) = 0;
  // Commits what is staged; with nothing staged moves the label alone. `on_update`: nothing means
  // the option's.
  virtual void finish_update(const std::string& owner, std::optional<std::string> label,
                             std::optional<OnUpdate> on_update, Done done) = 0;
  void finish_update(const std::string& owner, std::optional<std::string> label, Done done) {
    finish_update(owner, std::move(label), std::nullopt, std::move(done));
  }
  // Of what is staged, in patch mode: how long its commit will hold up decoding.
  virtual std::optional<std::uint64_t> predicted_stall_us() = 0;
  virtual Result<void> set_label(const std::string& label) = 0;
  virtual ReceiverMetrics metrics() = 0;

  // "blake3:..." of what is served, and SHA-256 of each tensor as vLLM's /weight_checker keys them,
  // hashed by a background thread; `done` from any thread.
  virtual void checksums(
      std::function<void(std::vector<std::pair<std::string, std::string>>)> done) = 0;
};

}  // namespace weft
