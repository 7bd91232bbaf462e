#pragma once
// What is learned: tasks that make questions whose answers a rule can check, and the characters
// they are written in.

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/trainer/random.h"

namespace weft {

// The characters of all tasks; a character's place is its token id. Immutable, so all functions are
// static.
class Vocabulary {
 public:
  static constexpr std::string_view kCharacters = "0123456789+=>$_?";
  static constexpr std::uint32_t kEnd = 13;      // '$': ends an answer
  static constexpr std::uint32_t kPadding = 14;  // '_'
  static constexpr std::uint32_t kUnknown = 15;  // '?': any other character

  static std::vector<std::uint32_t> encode(std::string_view text);
  // Requires: every id is below the number of characters.
  static std::string decode(std::span<const std::uint32_t> ids);
  // What Hugging Face `tokenizers` reads: a BPE model without merges, so one token a character.
  static std::string tokenizer_json();
  static std::string tokenizer_config_json();
};

struct Problem {
  std::string question;
  std::string answer;  // without the end token

  auto operator<=>(const Problem&) const = default;
};

// Makes problems and judges answers. Immutable.
class Task {
 public:
  virtual ~Task() = default;

  virtual Problem draw(Random& random) const = 0;
  // How many different questions there are.
  virtual std::uint64_t question_count() const = 0;
  // Of the longest answer, the end token included.
  virtual std::uint64_t max_answer_tokens() const = 0;
  // The reward of an answer: text up to its end token, or all of it if `ended` is false. In [0, 1];
  // 1 solves the problem.
  virtual double reward(const Problem& problem, std::string_view answer, bool ended) const;
};

// "sort": `digits` digits, a '>', then the same digits in ascending order. "31452>" is "12345".
// "add": two numbers of `digits` digits, then their sum with one digit more. "47+85=" is "132".
// Errors: kInvalidArgument naming the tasks there are.
Result<std::unique_ptr<Task>> make_task(std::string_view name, std::uint64_t digits);
std::span<const std::string_view> task_names();

// A task's problems cut in two: a fixed held-out set, the same for every run, and all others to
// train on. One thread.
class ProblemSource {
 public:
  // `task` must outlive it. Errors: kInvalidArgument if more than half of the questions were held
  // out.
  static Result<ProblemSource> make(const Task& task, std::uint64_t held_out, std::uint64_t seed);

  const std::vector<Problem>& held_out() const { return held_out_; }
  // `count` problems, none of them held out.
  std::vector<Problem> draw(std::uint64_t count);

 private:
  ProblemSource(const Task& task, std::uint64_t seed) : task_(&task), random_(seed) {}

  const Task* task_;
  Random random_;
  std::vector<Problem> held_out_;
  std::set<std::string> held_out_questions_;
};

}  // namespace weft
