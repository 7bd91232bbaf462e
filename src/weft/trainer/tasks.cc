#include "weft/trainer/tasks.h"

#include <algorithm>
#include <array>

#include <boost/json.hpp>
#include <fmt/format.h>

namespace weft {
namespace {

constexpr std::array<std::string_view, 2> kTaskNames{"sort", "add"};
// Of the held-out set. Fixed: every run is measured on the same questions.
constexpr std::uint64_t kHeldOutSeed = 12345;

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

double Task::reward(const Problem& problem, std::string_view answer, bool ended) const {
  return ended && answer == problem.answer ? 1.0 : 0.0;
}

std::span<const std::string_view> task_names() {
  return kTaskNames;
}

Result<std::unique_ptr<Task>> make_task(std::string_view name, std::uint64_t digits) {
  if (name == "sort") return std::make_unique<SortTask>(digits);
  if (name == "add") return std::make_unique<AddTask>(digits);
  return Error(ErrorCode::kInvalidArgument, fmt::format("there is no task `{}`; the tasks are {}",
                                                        name, fmt::join(kTaskNames, ", ")));
}

Result<ProblemSource> ProblemSource::make(const Task& task, std::uint64_t held_out,
                                          std::uint64_t seed) {
  if (held_out > task.question_count() / 2) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("task.held_out is {}, more than half of the {} questions there are",
                             held_out, task.question_count()));
  }
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

}  // namespace weft
