#pragma once
// Puller: takes versions by PullMachine from some sources, the best one first. One thread.

#include <memory>
#include <string>
#include <vector>

#include "weft/protocol/pull_machine.h"
#include "weft/sim/internal/content.h"
#include "weft/sim/internal/network.h"
#include "weft/sim/internal/source.h"

namespace weft::sim {

class Puller : public Node {
 public:
  Puller(Simulation& simulation, Network& network, Library& library, std::vector<Source*> sources,
         std::string name);

  // What it was pulling is forgotten.
  void pull(const std::string& id);
  bool idle() const { return machine_ == nullptr; }
  // Null: none yet.
  const Content* last() const { return has_; }

 protected:
  void on_crash() override { machine_.reset(); }
  void on_start() override {}

 private:
  using Step = PullMachine::Step;

  void next();
  void ask(const char* what, std::string (*part)(const VersionContent&),
           void (PullMachine::*hear)(const Result<std::string>&,
                                     std::optional<PullMachine::Milliseconds>));
  void hold();
  void fetch();
  void take(const PullMachine::Fetch& fetch, std::size_t index,
            const std::vector<std::uint8_t>& bytes);
  void end();

  Network& network_;
  Library& library_;
  const std::vector<Source*> sources_;
  std::unique_ptr<PullMachine> machine_;
  std::uint64_t pulls_ = 0;
  bool holding_ = false;  // what it has of the version before was held against the new one
  std::vector<Cells> cells_;
  const Content* has_ = nullptr;
};

}  // namespace weft::sim
