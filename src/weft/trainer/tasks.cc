#include "weft/trainer/tasks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "weft/base/check.h"

namespace weft {
namespace {

constexpr std::array<std::string_view, 3> kTaskNames{"sort", "add", "smooth"};
// Of the held-out set. Fixed: every run is measured on the same questions.
constexpr std::uint64_t kHeldOutSeed = 12345;
constexpr std::uint64_t kHeldOutPreferenceSeed = 54321;

std::uint64_t power_of_ten(std::uint64_t exponent) {
  std::uint64_t power = 1;
  while (exponent-- > 0) power *= 10;
  return power;
}

class SortTask final : public Task {
 public:
  explicit SortTask(std::uint64_t digits) : digits_(digits) {}

  Problem draw(Random& random) const override {
    std::string digits = fmt::format("{:0{}}", random.below(question_count()), digits_);
    Problem problem{digits + ">", {}};
    std::ranges::sort(digits);
    problem.answer = std::move(digits);
    return problem;
  }
  std::uint64_t question_count() const override { return power_of_ten(digits_); }
  std::uint64_t max_answer_tokens() const override { return digits_ + 1; }

 private:
  std::uint64_t digits_;
};

class AddTask final : public Task {
 public:
  explicit AddTask(std::uint64_t digits) : digits_(digits) {}

  Problem draw(Random& random) const override {
    const std::uint64_t a = random.below(power_of_ten(digits_));
    const std::uint64_t b = random.below(power_of_ten(digits_));
    return {fmt::format("{:0{}}+{:0{}}=", a, digits_, b, digits_),
            fmt::format("{:0{}}", a + b, digits_ + 1)};
  }
  std::uint64_t question_count() const override { return power_of_ten(2 * digits_); }
  std::uint64_t max_answer_tokens() const override { return digits_ + 2; }

 private:
  std::uint64_t digits_;
};

// A digit moved by up to two, most often by little or nothing.
int near_digit(int digit, Random& random) {
  const int step = static_cast<int>(random.below(3)) - static_cast<int>(random.below(3));
  return std::clamp(digit + step, 0, 9);
}

class SmoothTask final : public Task {
 public:
  explicit SmoothTask(std::uint64_t digits) : digits_(digits) {}

  Problem draw(Random& random) const override {
    const std::string digits = fmt::format("{:0{}}", random.below(question_count()), digits_);
    return {digits + ">", smoothest(digits)};
  }
  std::uint64_t question_count() const override { return power_of_ten(digits_); }
  std::uint64_t max_answer_tokens() const override { return digits_ + 1; }

  std::string demonstration(const Problem& problem, Random& random) const override {
    std::string answer;
    for (std::size_t i = 0; i < digits_; ++i) {
      answer.push_back(to_char(near_digit(to_digit(problem.question[i]), random)));
    }
    return answer;
  }

  // Of each digit, with a skill drawn for the whole answer, the best one (or one near to it), else
  // the demonstration's. Now and then a digit too few or too many.
  std::string attempt(const Problem& problem, Random& random) const override {
    std::string answer = demonstration(problem, random);
    const std::uint64_t skill = random.below(101);
    for (std::size_t i = 0; i < digits_; ++i) {
      if (random.below(100) >= skill) continue;
      const int best = to_digit(problem.answer[i]);
      answer[i] = to_char(random.below(2) == 0 ? best : near_digit(best, random));
    }
    const std::uint64_t fault = random.below(16);
    if (fault == 0) answer.pop_back();
    if (fault == 1) answer.push_back(answer.back());
    return answer;
  }

  double reward(const Problem& problem, std::string_view answer, bool ended) const override {
    if (!ended || answer.size() != digits_ ||
        answer.find_first_not_of("0123456789") != std::string_view::npos) {
      return 0;
    }
    const int excess = cost(problem.question, answer) - cost(problem.question, problem.answer);
    return std::exp(-excess / (4.0 * static_cast<double>(digits_)));
  }

 private:
  static int to_digit(char character) { return character - '0'; }
  static char to_char(int digit) { return static_cast<char>('0' + digit); }
  static int square(int value) { return value * value; }

  int cost(std::string_view question, std::string_view answer) const {
    int sum = 0;
    for (std::size_t i = 0; i < digits_; ++i) {
      sum += square(answer[i] - question[i]);
      if (i > 0) sum += square(answer[i] - answer[i - 1]);
    }
    return sum;
  }

  // The answer of least cost; of several, the one whose last digits are lowest. Source: Viterbi's
  // algorithm over the ten digits at each place.
  std::string smoothest(std::string_view question) const {
    std::array<int, 10> least{};  // cost of the best answer so far that ends in this digit
    std::vector<std::array<int, 10>> before;
    for (std::size_t i = 0; i < digits_; ++i) {
      const std::array<int, 10> last = least;
      auto& from = before.emplace_back();
      for (int digit = 0; digit < 10; ++digit) {
        const auto cost_from = [&](int other) {
          return i == 0 ? 0 : last.at(static_cast<std::size_t>(other)) + square(digit - other);
        };
        int best = 0;
        for (int other = 1; other < 10; ++other) {
          if (cost_from(other) < cost_from(best)) best = other;
        }
        const auto place = static_cast<std::size_t>(digit);
        from.at(place) = best;
        least.at(place) = cost_from(best) + square(digit - to_digit(question[i]));
      }
    }
    auto digit = static_cast<int>(std::ranges::min_element(least) - least.begin());
    std::string answer(digits_, '0');
    for (std::size_t i = digits_; i-- > 0;) {
      answer[i] = to_char(digit);
      digit = before[i].at(static_cast<std::size_t>(digit));
    }
    return answer;
  }

  std::uint64_t digits_;
};

}  // namespace

std::vector<std::uint32_t> Vocabulary::encode(std::string_view text) {
  std::vector<std::uint32_t> ids;
  for (const char character : text) {
    const std::size_t place = kCharacters.find(character);
    ids.push_back(place == std::string_view::npos ? kUnknown : static_cast<std::uint32_t>(place));
  }
  return ids;
}

std::string Vocabulary::decode(std::span<const std::uint32_t> ids) {
  std::string text;
  for (const std::uint32_t id : ids) text.push_back(kCharacters.at(id));
  return text;
}

std::string Vocabulary::tokenizer_json() {
  boost::json::object vocab;
  boost::json::array special;
  for (std::uint32_t id = 0; id < kCharacters.size(); ++id) {
    const std::string_view token = kCharacters.substr(id, 1);
    vocab[token] = id;
    if (id != kEnd && id != kPadding) continue;
    special.push_back({{"id", id},
                       {"content", token},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
  }
  const boost::json::value root = {{"version", "1.0"},
                                   {"truncation", nullptr},
                                   {"padding", nullptr},
                                   {"added_tokens", special},
                                   {"normalizer", nullptr},
                                   {"pre_tokenizer", nullptr},
                                   {"post_processor", nullptr},
                                   // Without a decoder the tokens would be joined by spaces.
                                   {"decoder", {{"type", "Fuse"}}},
                                   {"model",
                                    {{"type", "BPE"},
                                     {"dropout", nullptr},
                                     {"unk_token", kCharacters.substr(kUnknown, 1)},
                                     {"continuing_subword_prefix", nullptr},
                                     {"end_of_word_suffix", nullptr},
                                     {"fuse_unk", false},
                                     {"byte_fallback", false},
                                     {"ignore_merges", false},
                                     {"vocab", vocab},
                                     {"merges", boost::json::array()}}}};
  return boost::json::serialize(root) + "\n";
}

std::string Vocabulary::tokenizer_config_json() {
  const boost::json::value root = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"eos_token", kCharacters.substr(kEnd, 1)},
                                   {"pad_token", kCharacters.substr(kPadding, 1)},
                                   {"unk_token", kCharacters.substr(kUnknown, 1)},
                                   {"clean_up_tokenization_spaces", false}};
  return boost::json::serialize(root) + "\n";
}

std::string Task::demonstration(const Problem& problem, Random&) const {
  return problem.answer;
}

// Right, or with one digit changed.
std::string Task::attempt(const Problem& problem, Random& random) const {
  std::string answer = problem.answer;
  if (random.below(2) == 0) {
    char& digit = answer[random.below(answer.size())];
    digit = static_cast<char>('0' + (digit - '0' + 1 + static_cast<int>(random.below(9))) % 10);
  }
  return answer;
}

double Task::reward(const Problem& problem, std::string_view answer, bool ended) const {
  return ended && answer == problem.answer ? 1.0 : 0.0;
}

std::span<const std::string_view> task_names() {
  return kTaskNames;
}

Result<std::unique_ptr<Task>> make_task(std::string_view name, std::uint64_t digits) {
  if (name == "sort") return std::make_unique<SortTask>(digits);
  if (name == "add") return std::make_unique<AddTask>(digits);
  if (name == "smooth") return std::make_unique<SmoothTask>(digits);
  return Error(ErrorCode::kInvalidArgument, fmt::format("there is no task `{}`; the tasks are {}",
                                                        name, fmt::join(kTaskNames, ", ")));
}

Preference draw_preference(const Task& task, Problem problem, double min_margin, Random& random) {
  WEFT_CHECK(min_margin <= 0.05);
  while (true) {
    std::string one = task.attempt(problem, random), other = task.attempt(problem, random);
    const double margin = task.reward(problem, one, true) - task.reward(problem, other, true);
    if (margin < 0) std::swap(one, other);
    if (margin == 0 || std::abs(margin) < min_margin) continue;
    return {std::move(problem), std::move(one), std::move(other), std::abs(margin)};
  }
}

Result<void> ProblemSource::check_held_out(const Task& task, std::uint64_t held_out) {
  if (held_out <= task.question_count() / 2) return {};
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("task.held_out is {}, more than half of the {} questions there are",
                           held_out, task.question_count()));
}

Result<ProblemSource> ProblemSource::make(const Task& task, std::uint64_t held_out,
                                          std::uint64_t seed) {
  WEFT_TRY_VOID(check_held_out(task, held_out));
  ProblemSource source(task, seed);
  Random random(kHeldOutSeed);
  while (source.held_out_.size() < held_out) {
    Problem problem = task.draw(random);
    if (source.held_out_questions_.insert(problem.question).second) {
      source.held_out_.push_back(std::move(problem));
    }
  }
  return source;
}

std::vector<Problem> ProblemSource::draw(std::uint64_t count) {
  std::vector<Problem> problems;
  while (problems.size() < count) {
    Problem problem = task_->draw(random_);
    if (!held_out_questions_.contains(problem.question)) problems.push_back(std::move(problem));
  }
  return problems;
}

std::vector<Problem> ProblemSource::draw_demonstrations(std::uint64_t count) {
  std::vector<Problem> problems = draw(count);
  for (Problem& problem : problems) problem.answer = task_->demonstration(problem, random_);
  return problems;
}

std::vector<Preference> ProblemSource::draw_preferences(std::uint64_t count, double min_margin) {
  std::vector<Preference> preferences;
  for (Problem& problem : draw(count)) {
    preferences.push_back(draw_preference(*task_, std::move(problem), min_margin, random_));
  }
  return preferences;
}

std::vector<Preference> ProblemSource::held_out_preferences(std::uint64_t count,
                                                            double min_margin) const {
  Random random(kHeldOutPreferenceSeed);
  std::vector<Preference> preferences;
  for (std::size_t i = 0; i < std::min<std::size_t>(count, held_out_.size()); ++i) {
    preferences.push_back(draw_preference(*task_, held_out_[i], min_margin, random));
  }
  return preferences;
}

}  // namespace weft
