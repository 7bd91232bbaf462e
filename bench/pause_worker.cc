// The load of pause_bench.py: keeps sequences decoding over real sockets and knows when each token
// came. Obeys standard input, one command a line, one JSON object a line back:
//   start URL SEQUENCES PROMPT LEAST MOST   so many streams; each asks again when its sequence ends
//                                           (a prompt of PROMPT tokens, LEAST to MOST tokens out)
//   gaps FROM TO [AT]   of the gaps that end between two times (seconds of CLOCK_MONOTONIC): how
//                       many, the median and the longest; the longest that spans AT

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/http/client.h"

namespace weft::bench {
namespace {

namespace json = boost::json;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Between two tokens of one sequence.
struct Gap {
  double begin_s, end_s;
};

// All gaps that were seen. Thread-safe.
class Gaps {
 public:
  void add(Gap gap) {
    const std::lock_guard lock(mutex_);
    gaps_.push_back(gap);
  }
  void add_begun(double s) {
    const std::lock_guard lock(mutex_);
    begun_s_.push_back(s);
  }
  void add_aborted() {
    const std::lock_guard lock(mutex_);
    ++aborted_;
  }

  json::object between(double from_s, double to_s, double at_s) const {
    const std::lock_guard lock(mutex_);
    std::vector<double> lengths_ms;
    double spanning_ms = 0;
    for (const Gap& gap : gaps_) {
      if (gap.end_s < from_s || gap.end_s > to_s) continue;
      const double length_ms = 1e3 * (gap.end_s - gap.begin_s);
      lengths_ms.push_back(length_ms);
      if (gap.begin_s <= at_s && at_s < gap.end_s) spanning_ms = std::max(spanning_ms, length_ms);
    }
    std::ranges::sort(lengths_ms);
    const bool none = lengths_ms.empty();
    return {{"tokens", lengths_ms.size()},
            {"median_ms", none ? 0 : lengths_ms[lengths_ms.size() / 2]},
            {"longest_ms", none ? 0 : lengths_ms.back()},
            {"spanning_ms", spanning_ms},
            {"begun",
             std::ranges::count_if(begun_s_, [&](double s) { return from_s <= s && s <= to_s; })},
            {"aborted", aborted_}};
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Gap> gaps_;
  std::vector<double> begun_s_;
  std::uint64_t aborted_ = 0;
};

struct Load {
  std::string url;
  unsigned sequences = 0, prompt_tokens = 0, least_tokens = 0, most_tokens = 0;
};

// Calls `event` for each server-sent event in a body that comes in pieces.
class EventLines {
 public:
  template <typename Event>
  void feed(std::string_view piece, Event event) {
    rest_ += piece;
    for (std::size_t end; (end = rest_.find('\n')) != std::string::npos; rest_.erase(0, end + 1)) {
      const std::string_view line = std::string_view(rest_).substr(0, end);
      if (line.starts_with("data: {")) event(line);
    }
  }

 private:
  std::string rest_;
};

class Streams {
 public:
  // Waits until the running sequences have ended.
  ~Streams() {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  Result<void> start(const Load& load) {
    WEFT_TRY(http::Url url, http::Url::parse(load.url));
    client_ = http::Client::make(std::move(url));
    load_ = load;
    for (unsigned i = 0; i < load.sequences; ++i) {
      threads_.emplace_back([this, i] { blocking_ask_for_ever(i); });
    }
    return {};
  }

  const Gaps& gaps() const { return gaps_; }

 private:
  void blocking_ask_for_ever(unsigned seed) {
    std::mt19937 random(seed);
    while (!stopping_) {
      const auto answer = blocking_ask(random);
      if (!answer || answer->status != 200) {
        std::fprintf(stderr, "pause_worker: %s\n",
                     answer ? answer->body.c_str() : answer.error().message().c_str());
        return;
      }
    }
  }

  Result<http::Response> blocking_ask(std::mt19937& random) {
    json::array prompt;
    for (unsigned i = 0; i < load_.prompt_tokens; ++i) prompt.emplace_back(random() % 256);
    const unsigned tokens =
        std::uniform_int_distribution(load_.least_tokens, load_.most_tokens)(random);
    http::Request request;
    request.method = "POST";
    request.target = "/v1/completions";
    request.headers.add("Content-Type", "application/json");
    request.body = json::serialize(json::object{{"prompt", std::move(prompt)},
                                                {"max_tokens", tokens},
                                                {"ignore_eos", true},
                                                {"stream", true}});
    EventLines lines;
    double last_s = 0;
    bool aborted = false;
    auto answer = client_->blocking_send_streaming(request, [&](std::string_view piece) {
      const double s = now_s();
      lines.feed(piece, [&](std::string_view line) {
        last_s > 0 ? gaps_.add({last_s, s}) : gaps_.add_begun(s);
        last_s = s;
        aborted = aborted || line.find("\"abort\"") != std::string_view::npos;
      });
      return true;
    });
    if (aborted) gaps_.add_aborted();
    return answer;
  }

  std::unique_ptr<http::Client> client_;
  Load load_;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> threads_;
  Gaps gaps_;
};

Result<json::object> obey(Streams& streams, const std::string& line) {
  std::istringstream words(line);
  std::string command;
  words >> command;
  if (command == "start") {
    Load load;
    words >> load.url >> load.sequences >> load.prompt_tokens >> load.least_tokens >>
        load.most_tokens;
    WEFT_TRY_VOID(streams.start(load));
    return json::object{};
  }
  if (command == "gaps") {
    double from_s = 0, to_s = 0, at_s = 0;
    words >> from_s >> to_s >> at_s;
    return streams.gaps().between(from_s, to_s, at_s);
  }
  return Error(ErrorCode::kInvalidArgument, fmt::format("no such command: {}", line));
}

}  // namespace
}  // namespace weft::bench

int main() {
  weft::bench::Streams streams;
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const auto answer = weft::bench::obey(streams, line);
    const boost::json::object object =
        answer ? *answer : boost::json::object{{"error", answer.error().message()}};
    std::printf("%s\n", boost::json::serialize(object).c_str());
    std::fflush(stdout);
  }
  return 0;
}
