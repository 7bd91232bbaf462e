#include "weft/sim/internal/simulation.h"

#include <algorithm>
#include <utility>

namespace weft::sim {

void Simulation::after(Duration delay, Event event) {
  queue_.push_back({now_ + delay, ++ordered_, std::move(event)});
  std::ranges::push_heap(queue_, Later{});
}

void Simulation::run_until(Instant end) {
  while (!failed() && !queue_.empty() && queue_.front().at <= end) {
    std::ranges::pop_heap(queue_, Later{});
    const Entry next = std::move(queue_.back());
    queue_.pop_back();
    now_ = std::max(now_, next.at);
    ++events_;
    next.event();
    for (const Event& invariant : invariants_) invariant();
  }
  if (!failed()) now_ = std::max(now_, end);
}

void Simulation::drop_events() {
  // What ends with an event may set others.
  while (!queue_.empty()) std::exchange(queue_, {}).clear();
}

void Simulation::violated(std::string_view rule, std::string_view what) {
  if (failed()) return;
  failure_ = fmt::format("{}: {}", rule, what);
  trace("!", "{}", failure_);
}

void Simulation::add_line(std::string_view node, std::string_view text) {
  const double at = std::chrono::duration<double>(now_.time_since_epoch()).count();
  lines_.push_back(fmt::format("{:9.3f}  {:<12} {}", at, node, text));
}

}  // namespace weft::sim
