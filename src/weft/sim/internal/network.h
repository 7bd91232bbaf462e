#pragma once
// Nodes and the connections between them: calls that are lost, come twice, late, or out of order,
// and bodies that come in pieces and break anywhere. One thread.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/base/result.h"
#include "weft/protocol/push_machine.h"
#include "weft/sim/internal/simulation.h"

namespace weft::sim {

// A process that may crash. What it set in motion before is void afterwards: its events and the
// calls to it carry the instance they belong to.
class Node {
 public:
  Node(Simulation& simulation_, std::string name_)
      : simulation(simulation_), name(std::move(name_)) {}
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  virtual ~Node() = default;

  bool up() const { return up_; }
  std::uint64_t instance() const { return instance_; }
  bool is(std::uint64_t instance) const { return up_ && instance == instance_; }
  // Between two events, and so at any step.
  void crash();
  void restart();
  // Runs `event` after `delay`, unless this has crashed by then.
  void after(Duration delay, Simulation::Event event);

  Simulation& simulation;
  const std::string name;

 protected:
  // What is lost with the process, and what it does first.
  virtual void on_crash() = 0;
  virtual void on_start() = 0;
  // Jobs run one after the other, each until it calls job_done(). A crash drops them.
  using Job = std::function<void()>;
  void post(Job job);
  void job_done();
  bool has_jobs() const { return !jobs_.empty(); }

 private:
  bool up_ = true;
  std::uint64_t instance_ = 1;
  std::deque<Job> jobs_;
};

// In percent of all calls, bodies or pieces.
struct Faults {
  unsigned lost = 0;       // the call never arrives
  unsigned mute = 0;       // it is done, the answer never arrives
  unsigned twice = 0;      // it arrives again later
  unsigned stalled = 0;    // it takes longer than its sender waits
  unsigned cut = 0;        // of pieces: the connection breaks before it
  unsigned corrupted = 0;  // of pieces: a byte flips
};

// A body on its way, as the server sees it. All but finish() say that its connection ends.
class Body {
 public:
  virtual ~Body() = default;
  // Piece `index` comes, with `flip` xor-ed into it. Errors end the body and are its answer.
  virtual Result<void> take(std::size_t index, std::uint8_t flip) = 0;
  // All pieces came.
  virtual Result<PushMachine::Counts> finish() = 0;
  // The connection broke.
  virtual void cut() = 0;

  // Ends the connection from the server's side.
  std::function<void()> close;
};

// A body on its way to the client, as the server sees it.
class Download {
 public:
  virtual ~Download() = default;
  virtual std::size_t pieces() const = 0;
  // The bytes of a piece as they are now. Errors end the download.
  virtual Result<std::vector<std::uint8_t>> read(std::size_t index) = 0;
};

class Network {
 public:
  explicit Network(Simulation& simulation) : simulation_(simulation) {}

  template <typename T>
  using Reply = std::function<void(Result<T>)>;

  // Runs `handler` on `to`; `done` hears its answer, or kDisconnected or kDeadline, once.
  template <typename T>
  void call(Node& from, Node& to, std::string what, std::function<void(Reply<T>)> handler,
            Reply<T> done);
  // Sends `pieces` pieces to the body that `open` makes on `to` when the first one arrives.
  void send(Node& from, Node& to, std::string what, std::size_t pieces,
            std::function<Result<std::shared_ptr<Body>>()> open, Reply<PushMachine::Counts> done);

  // Fetches what `open` gives on `to`; `take` hears each piece, `done` how it ended.
  void fetch(Node& from, Node& to, std::string what,
             std::function<Result<std::shared_ptr<Download>>()> open,
             std::function<void(std::size_t, const std::vector<std::uint8_t>&)> take,
             Reply<bool> done);

  Faults faults;

 private:
  class Stream;
  class Fetch;

  Duration delay();
  Duration arrival();

  Simulation& simulation_;
};

// How long a sender waits for an answer.
inline constexpr seconds kPatience{40};

template <typename T>
void Network::call(Node& from, Node& to, std::string what, std::function<void(Reply<T>)> handler,
                   Reply<T> done) {
  const auto waiting = std::make_shared<Reply<T>>(std::move(done));
  const Reply<T> end = [&from, me = from.instance(), waiting, what](Result<T> result) {
    if (!*waiting || !from.is(me)) return;
    from.simulation.trace(from.name, "hears of {}: {}", what,
                          result ? "done" : result.error().message());
    const Reply<T> hear = std::exchange(*waiting, nullptr);
    hear(std::move(result));
  };
  const Error broken(ErrorCode::kDisconnected, "the connection broke");
  const Reply<T> answer = [this, end, broken](Result<T> result) {
    const bool mute = simulation_.random.chance(faults.mute);
    simulation_.after(delay(), [end, result = mute ? broken : std::move(result)] { end(result); });
  };
  const auto arrive = [this, &to, it = to.instance(), what, handler = std::move(handler), answer,
                       end, broken] {
    if (!to.is(it)) return end(broken);
    simulation_.trace(to.name, "gets {}", what);
    handler(answer);
  };
  simulation_.trace(from.name, "calls {}", what);
  simulation_.after(kPatience, [end] { end(Error(ErrorCode::kDeadline, "no answer came")); });
  if (simulation_.random.chance(faults.lost)) {
    simulation_.after(delay(), [end, broken] { end(broken); });
  } else {
    simulation_.after(arrival(), arrive);
  }
  if (simulation_.random.chance(faults.twice)) simulation_.after(arrival(), arrive);
}

}  // namespace weft::sim
