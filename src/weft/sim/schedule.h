#pragma once
// One schedule of the simulator: trainers, a receiver that serves, and everything that may go wrong
// between them, all from one seed. docs/testing.md, "Simulator", says what is modelled, which rules
// are held, and how to read a trace.

#include <cstdint>
#include <string>
#include <vector>

namespace weft::sim {

struct Outcome {
  std::uint64_t events = 0;
  std::string failure;             // the rule that was broken, and how; "" if none was
  std::vector<std::string> trace;  // if asked for
};

// The same seed gives the same outcome on every machine. Thread-safe.
Outcome run_schedule(std::uint64_t seed, bool tracing);

}  // namespace weft::sim
