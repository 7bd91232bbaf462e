#pragma once
// Simulation: a virtual clock, the events to come, chance, and what was found wrong. Everything in
// one schedule follows from its seed. One thread.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "weft/protocol/update_machine.h"
#include "weft/sim/internal/random.h"

namespace weft::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Simulation {
 public:
  using Event = std::function<void()>;

  Simulation(std::uint64_t seed, bool tracing) : random(seed), tracing_(tracing) {}
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  Instant now() const { return now_; }
  // Runs `event` after `delay`; of events at one time, the one that was set first.
  void after(Duration delay, Event event);
  // Checked after every event.
  void always(Event invariant) { invariants_.push_back(std::move(invariant)); }
  // Runs events until `end`, or until something is found wrong.
  void run_until(Instant end);
  // The clock leaps while nothing runs: a machine that slept.
  void leap(Duration by) { now_ += by; }
  // It ends here: what is to come does not. To be called while all that events refer to is alive.
  void drop_events();

  // A rule is broken: the schedule ends here. The first one counts.
  void violated(std::string_view rule, std::string_view what);
  bool failed() const { return !failure_.empty(); }
  const std::string& failure() const { return failure_; }

  template <typename... T>
  void trace(std::string_view node, fmt::format_string<T...> format, T&&... values) {
    if (tracing_) add_line(node, fmt::format(format, std::forward<T>(values)...));
  }
  const std::vector<std::string>& lines() const { return lines_; }
  std::uint64_t events() const { return events_; }

  Random random;

 private:
  struct Entry {
    Instant at;
    std::uint64_t order;
    Event event;
  };
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };

  void add_line(std::string_view node, std::string_view text);

  const bool tracing_;
  Instant now_{};
  std::uint64_t events_ = 0;
  std::uint64_t ordered_ = 0;
  std::vector<Entry> queue_;  // a heap by Later
  std::vector<Event> invariants_;
  std::string failure_;
  std::vector<std::string> lines_;
};

}  // namespace weft::sim
