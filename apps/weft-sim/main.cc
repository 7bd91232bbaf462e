// weft-sim: runs schedules of the deterministic simulator. docs/testing.md, "Simulator".

#include <cinttypes>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <unistd.h>

#include "weft/sim/schedule.h"

namespace {

struct Options {
  std::uint64_t schedules = 10'000;
  std::uint64_t seed = 1;
  unsigned threads = 2;
  bool trace = false;
};

constexpr std::uint64_t kRound = 1'000;  // schedules between two lines of progress
constexpr std::size_t kTraceLines = 80;  // of a failure, without --trace

thread_local std::uint64_t running_seed = 0;

// A check that fails in the code under test, or worse, ends the process: say at which seed.
void on_abort(int) {
  char text[64];
  const int size = std::snprintf(text, sizeof text, "seed %" PRIu64 ": aborted\n", running_seed);
  [[maybe_unused]] const auto written = write(STDOUT_FILENO, text, static_cast<std::size_t>(size));
  _exit(1);
}

// Of one schedule; its trace is made again when it is wanted.
struct Done {
  std::uint64_t events = 0;
  bool failed = false;
};

void run(std::uint64_t seed, Done& done) {
  running_seed = seed;
  const auto outcome = weft::sim::run_schedule(seed, false);
  done = {outcome.events, !outcome.failure.empty()};
}

// Runs the seeds from `first` on, one result each, on some threads: each by its seed alone.
std::vector<Done> run_round(std::uint64_t first, std::uint64_t count, unsigned threads) {
  std::vector<Done> results(count);
  std::vector<std::thread> pool;
  for (unsigned thread = 0; thread < threads; ++thread) {
    pool.emplace_back([&, thread] {
      for (std::uint64_t i = thread; i < count; i += threads) run(first + i, results[i]);
    });
  }
  for (std::thread& thread : pool) thread.join();
  return results;
}

void print_trace(std::uint64_t seed, bool whole) {
  const auto outcome = weft::sim::run_schedule(seed, true);
  const std::size_t lines = outcome.trace.size();
  const std::size_t first = whole || lines < kTraceLines ? 0 : lines - kTraceLines;
  if (first > 0) fmt::print("... {} lines before (--trace shows them)\n", first);
  for (std::size_t i = first; i < lines; ++i) fmt::print("{}\n", outcome.trace[i]);
  if (!outcome.failure.empty()) fmt::print("seed {}: {}\n", seed, outcome.failure);
}

int run_all(const Options& options) {
  std::uint64_t schedules = 0, events = 0, failures = 0;
  while (schedules < options.schedules && failures == 0) {
    const std::uint64_t first = options.seed + schedules;
    const auto count = std::min(kRound, options.schedules - schedules);
    for (const Done& done : run_round(first, count, options.threads)) {
      ++schedules;
      events += done.events;
      if (done.failed) {
        ++failures;
        break;
      }
    }
    if (schedules % (10 * kRound) == 0) fmt::print("{} schedules, {} events\n", schedules, events);
    std::fflush(stdout);
  }
  if (options.trace || failures > 0) print_trace(options.seed + schedules - 1, options.trace);
  fmt::print("SIM {{\"schedules\": {}, \"events\": {}, \"failures\": {}}}\n", schedules, events,
             failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Runs schedules of the simulator and holds each to the protocol's rules");
  app.add_option("--schedules", options.schedules, "How many")->capture_default_str();
  app.add_option("--seed", options.seed, "The first one; the next are 1 more each")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "The result does not depend on it")
      ->check(CLI::Range(1u, 64u))
      ->capture_default_str();
  app.add_flag("--trace", options.trace, "Prints all of the last schedule, or of the failing one");
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGABRT, on_abort);
  std::signal(SIGSEGV, on_abort);
  return run_all(options);
}
