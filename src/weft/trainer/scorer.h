#pragma once
// Scorers that need no model: rules in C++, and another program over HTTP.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "weft/base/result.h"
#include "weft/trainer/experience.h"
#include "weft/trainer/tasks.h"

namespace weft {

// Scores by rules in C++. A rule is "NAME" or "WEIGHT NAME", as in "0.2 format"; the score is the
// weighted sum. The names:
//   task        the task's own judgement, in [0, 1] (Task::reward)
//   exact       1 for the best answer, ended
//   format      1 for what has the form of an answer: ended, digits only, of the right length
//   arithmetic  1 for the number that the question, a sum like "47+85=", comes to, ended
// `task` must outlive it. Errors: kInvalidArgument naming the rule: unknown, a weight that is no
// number, arithmetic where the task's questions are no sums.
Result<std::unique_ptr<Scorer>> make_rule_scorer(const Task& task,
                                                 std::span<const std::string> rules);

struct HttpScorerOptions {
  std::string url;                            // of the requests themselves: its path is used
  std::chrono::milliseconds timeout{10'000};  // of one request
  unsigned retries = 5;                       // of one request, in a row
  std::chrono::milliseconds first_wait{100};  // before a retry; doubled with each, up to 5 s
  std::uint64_t batch = 256;                  // samples in one request
  std::string ca_file{};                      // of https; as in http::ClientOptions
  const std::atomic<bool>* stop = nullptr;    // ends what goes on; must outlive the scorer
};

// Sends samples to another program:
//   POST URL   {"samples": [{"question", "answer", "ended", "question_ids", "answer_ids"}, ...]}
//   200        {"scores": [0.75, null, ...]}, one for each sample; null: it has no score for that
// Anything else is tried again, unless its status says that the request is wrong (400 to 499, save
// 408 and 429). Errors: kInvalidArgument for a URL
// that is none; of scoring kCancelled after `stop`, too.
Result<std::unique_ptr<Scorer>> make_http_scorer(const HttpScorerOptions& options);

}  // namespace weft
