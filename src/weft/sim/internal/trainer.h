#pragma once
// Trainer: pushes one version after the other by PushMachine, crashes, forgets, and comes back; now
// and then it does something out of order. One thread.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/protocol/push_machine.h"
#include "weft/sim/internal/network.h"
#include "weft/sim/internal/receiver.h"

namespace weft::sim {

class Trainer : public Node {
 public:
  struct Habits {
    std::string session;
    bool announced = true;  // sends the digests of all blocks first
    unsigned connections = 2;
    unsigned odd = 0;       // percent of steps before which it does something else first
    unsigned based = 0;     // percent of pushes against what serves, block by block what changed
    unsigned partial = 0;   // percent of those that bring some of the tensors
    bool finishes = false;  // wishes on_update=finish
    unsigned writer = 0, writers = 1;  // of one upload, as PushMachine has them
  };

  Trainer(Simulation& simulation, Network& network, Receiver& receiver, std::string name,
          Habits habits);

  // Begins to push `content`; what was being pushed is forgotten.
  void push(const Content& content);
  // Begins to push its share of what the first writer is pushing, if it is.
  void join(const Trainer& first);
  // What it believes to serve.
  void know(const Content& content) { known_ = &content; }
  bool idle() const { return machine_ == nullptr; }
  bool announces() const { return habits_.announced; }
  // Of the pushes that ended.
  unsigned done() const { return done_; }
  // Is this what the push of now makes of what serves?
  bool means(const std::string& id) const;

 protected:
  void on_crash() override { machine_.reset(); }
  void on_start() override {}

 private:
  using Step = PushMachine::Step;

  void begin();
  void next();
  void ask_serving();
  void hear_serving(const PushMachine::Serving& serving);
  void open();
  void send();
  void seal();
  void commit();
  void drop();
  void end();
  void do_something_odd();
  void roll_back();
  void send_odd_block(const std::string& upload);
  // Calls back only while the push of now goes on.
  template <typename T>
  Network::Reply<T> mine(std::function<void(Result<T>)> then);
  void choose_offer(const Content& content);
  CommitWish wish() const;

  Network& network_;
  Receiver& receiver_;
  const Habits habits_;
  std::unique_ptr<PushMachine> machine_;
  std::string session_;
  Offer offer_;
  const Content* known_;                            // to serve, as far as it heard
  std::optional<PushMachine::Serving> began_over_;  // what served when the push of now began
  bool lost_turn_ = false;                          // another version was committed meanwhile
  std::uint64_t pushes_ = 0;
  std::vector<std::string> uploads_;  // all that it ever heard of
  unsigned done_ = 0;
};

}  // namespace weft::sim
