#pragma once
// What is learned: tasks that make questions and judge answers by a rule, and the characters they
// are written in.

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

  // Its answer is the best one.
  virtual Problem draw(Random& random) const = 0;
  // How many different questions there are.
  virtual std::uint64_t question_count() const = 0;
  // Of the longest answer, the end token included.
  virtual std::uint64_t max_answer_tokens() const = 0;
  // The answer that fine-tuning shows: the best one, unless the task says otherwise.
  virtual std::string demonstration(const Problem& problem, Random& random) const;
  // An answer as someone of changing skill would give, for pairs of which one is better.
  virtual std::string attempt(const Problem& problem, Random& random) const;
  // The true worth of an answer: text up to its end token, or all of it if `ended` is false. In
  // [0, 1]; 1 solves the problem.
  virtual double reward(const Problem& problem, std::string_view answer, bool ended) const;
};

// "sort": `digits` digits, a '>', then the same digits in ascending order. "31452>" is "12345".
// "add": two numbers of `digits` digits, then their sum with one digit more. "47+85=" is "132".
// "smooth": `digits` digits q, a '>', then as many digits a, near to q but without its jumps; the
// fewer sum (a_i - q_i)^2 + sum (a_i - a_{i-1})^2 has above the least, the better: its reward is
// exp(-excess / (4 digits)). Whoever sees q and a cannot tell the worth from a token alone, and
// what fine-tuning shows are mere copies of q with noise: a task for reward models.
// Errors: kInvalidArgument naming the tasks there are.
Result<std::unique_ptr<Task>> make_task(std::string_view name, std::uint64_t digits);
std::span<const std::string_view> task_names();

// Two ended answers to one question, of which the first is better by the true rule.
struct Preference {
  Problem problem;
  std::string chosen, rejected;
  double margin = 0;  // of their rewards; > 0

  auto operator<=>(const Preference&) const = default;
};

// Two attempts whose rewards differ by `min_margin` at least. Requires: min_margin <= 0.05, which
// every task's attempts reach soon.
Preference draw_preference(const Task& task, Problem problem, double min_margin, Random& random);

// A task's problems cut in two: a fixed held-out set, the same for every run, and all others to
// train on. One thread.
class ProblemSource {
 public:
  // Errors: kInvalidArgument if more than half of the questions were held out.
  static Result<void> check_held_out(const Task& task, std::uint64_t held_out);
  // `task` must outlive it. Errors: check_held_out().
  static Result<ProblemSource> make(const Task& task, std::uint64_t held_out, std::uint64_t seed);

  const std::vector<Problem>& held_out() const { return held_out_; }
  // `count` problems, none of them held out.
  std::vector<Problem> draw(std::uint64_t count);
  // The same with the answers that fine-tuning shows.
  std::vector<Problem> draw_demonstrations(std::uint64_t count);
  std::vector<Preference> draw_preferences(std::uint64_t count, double min_margin);
  // Of the first `count` held-out problems; the same for every seed.
  std::vector<Preference> held_out_preferences(std::uint64_t count, double min_margin) const;

  // What it will draw is a function of this alone.
  std::uint64_t random_state() const { return random_.state(); }
  void restore(std::uint64_t random_state) { random_ = Random(random_state); }

 private:
  ProblemSource(const Task& task, std::uint64_t seed) : task_(&task), random_(seed) {}

  const Task* task_;
  Random random_;
  std::vector<Problem> held_out_;
  std::set<std::string> held_out_questions_;
};

}  // namespace weft
