#pragma once
// Engine: two sets of weights, byte by byte, and the sequences that are sampled from them. It is
// told what to do and holds it to the rules. One thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/protocol/receiver_machine.h"
#include "weft/sim/internal/content.h"
#include "weft/sim/internal/network.h"

namespace weft::sim {

class Engine {
 public:
  struct Takeover {
    Handover handover;
    const Content* expected;              // what it must be; null: its pusher alone knows
    std::optional<Cells> file;            // what the set's file is; none: it has it
    std::function<Result<void>()> patch;  // in place: what writes over the set, all or nothing
    bool unverified = false;              // what the patch made is hashed later: confirm()
    std::function<void(Result<void>)> done;
    std::function<void()> released;  // nobody runs on the set before any more
  };

  // Serves `first` from set 0. `node`: the process it lives in.
  Engine(Node& node, Library& library, const Content& first);

  std::size_t serving() const { return serving_; }
  const VersionName& version() const { return version_; }
  const Cells& cells(std::size_t set, std::size_t place) const { return sets_[set][place]; }

  // The memory of `set` is for `epoch` from now on, and what it held is gone.
  void give(std::size_t set, Epoch epoch);
  // One byte comes for `epoch`.
  void write(std::size_t set, Epoch epoch, std::size_t place, std::size_t cell, std::uint8_t value);
  // At the next token boundary.
  void take_over(Takeover takeover);
  // Writes over the serving set, between two tokens; nothing but a patch may.
  void patch(std::size_t place, const Cells& cells);
  // What was patched is what it is called, says whoever hashed it.
  void confirm();
  // Takes a patch back at the next token boundary. `undo` writes.
  void take_back(std::function<void()> undo, VersionName version, std::function<void()> done);
  // Sequences that still end on the retired set go on with the other one.
  void evict();
  // What serves goes by another label, or is called corrupt.
  void rename(VersionName version) { version_ = std::move(version); }

  // Someone outside reads a set, until the number it gets is closed.
  std::uint64_t open_reader(std::size_t set, const std::string& id);
  void close_reader(std::uint64_t reader) { readers_.erase(reader); }

  // The invariant that needs no event: what is served is what it is called.
  void check() const;
  bool is_confirmed() const { return content_ != nullptr; }

 private:
  // Sequences that run on one set, a token of all of them at a time, reading it in parts.
  struct Run {
    std::size_t set = 0;
    VersionName version;
    std::size_t place = 0;
    std::vector<Cells> read;
    bool in_token = false;
    bool unverified = false;
    unsigned tokens_left = 0;  // of a run that ends on the set it began on
  };
  struct Release {
    std::size_t set;
    std::function<void()> released;
  };

  void begin_token(const std::shared_ptr<Run>& run);
  void read_some(const std::shared_ptr<Run>& run);
  void end_token(const std::shared_ptr<Run>& run);
  bool is_run_on(std::size_t set) const;
  void release();
  void boundary();
  void perform(Takeover takeover);
  void finish_on_old(OnUpdate on_update);
  bool holds(std::size_t set, const Content& content) const;

  Node& node_;
  Library& library_;
  Simulation& simulation_;
  std::array<std::vector<Cells>, 2> sets_;
  std::array<Epoch, 2> given_to_{};
  std::size_t serving_ = 0;
  VersionName version_;
  const Content* content_;  // null: patched, and not confirmed
  bool patching_ = false;
  std::optional<Takeover> pending_;
  std::function<void()> pending_undo_;
  std::shared_ptr<Run> run_ = std::make_shared<Run>();  // on what serves
  std::vector<std::shared_ptr<Run>> old_runs_;          // that end on the set they began on
  std::vector<Release> releases_;                       // to come
  std::set<Epoch> taken_over_;
  std::map<std::uint64_t, std::size_t> readers_;
  std::uint64_t last_reader_ = 0;
};

}  // namespace weft::sim
