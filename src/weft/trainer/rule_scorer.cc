#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "weft/trainer/scorer.h"

namespace weft {
namespace {

struct Answer {
  const Problem& problem;
  std::string text;  // up to the end token
  bool ended;        // by its end token
};

// What the sum at the front of `text` comes to, and what follows it: "47+85=" is 132 and "=".
struct Sum {
  std::uint64_t value = 0;
  std::string_view rest;
};

std::optional<std::uint64_t> take_number(std::string_view& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<Sum> try_sum(std::string_view text) {
  Sum sum;
  while (true) {
    const auto number = take_number(text);
    if (!number) return std::nullopt;
    sum.value += *number;
    if (!text.starts_with('+')) break;
    text.remove_prefix(1);
  }
  sum.rest = text;
  return sum;
}

bool is_sum(std::string_view question) {
  const auto sum = try_sum(question);
  return sum && sum->rest == "=" && question.find('+') != std::string_view::npos;
}

double task_rule(const Task& task, const Answer& answer) {
  return task.reward(answer.problem, answer.text, answer.ended);
}

double exact_rule(const Task&, const Answer& answer) {
  return answer.ended && answer.text == answer.problem.answer ? 1 : 0;
}

double format_rule(const Task& task, const Answer& answer) {
  const bool is_formed = answer.ended && answer.text.size() + 1 == task.max_answer_tokens() &&
                         answer.text.find_first_not_of("0123456789") == std::string::npos;
  return is_formed ? 1 : 0;
}

double arithmetic_rule(const Task&, const Answer& answer) {
  std::string_view text = answer.text;
  const auto number = take_number(text);
  const auto sum = try_sum(answer.problem.question);
  return answer.ended && number && text.empty() && sum && sum->value == *number ? 1 : 0;
}

using Rule = double (*)(const Task&, const Answer&);
constexpr std::array<std::pair<std::string_view, Rule>, 4> kRules{
    {{"task", task_rule},
     {"exact", exact_rule},
     {"format", format_rule},
     {"arithmetic", arithmetic_rule}}};

struct WeightedRule {
  double weight = 1;
  Rule rule = nullptr;
};

Result<WeightedRule> parse_rule(const Task& task, std::string_view text) {
  WeightedRule weighted;
  std::string_view name = text;
  if (const std::size_t space = text.find(' '); space != std::string_view::npos) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + space, weighted.weight);
    if (error != std::errc() || end != text.data() + space || !std::isfinite(weighted.weight)) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("the rule `{}` must be a name, or a number and a name", text));
    }
    name = text.substr(space + 1);
  }
  std::vector<std::string_view> names;
  for (const auto& [known, rule] : kRules) {
    names.push_back(known);
    if (known == name) weighted.rule = rule;
  }
  if (weighted.rule == nullptr) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("there is no rule `{}`; the rules are {}",
                                                          name, fmt::join(names, ", ")));
  }
  Random random(0);
  if (weighted.rule == arithmetic_rule && !is_sum(task.draw(random).question)) {
    return Error(ErrorCode::kInvalidArgument,
                 "the rule `arithmetic` is for questions that are sums, which this task's are not");
  }
  return weighted;
}

class RuleScorer final : public Scorer {
 public:
  RuleScorer(const Task& task, std::vector<WeightedRule> rules)
      : task_(task), rules_(std::move(rules)) {}

  Result<std::vector<std::optional<double>>> blocking_score(const Experience& experience) override {
    std::vector<std::optional<double>> scores;
    for (std::size_t i = 0; i < experience.rollouts.size(); ++i) {
      const Rollout& rollout = experience.rollouts[i];
      const Answer answer{experience.problem_of(i), answer_text(rollout), rollout.ended};
      double sum = 0;
      for (const WeightedRule& each : rules_) sum += each.weight * each.rule(task_, answer);
      scores.emplace_back(sum);
    }
    return scores;
  }

 private:
  const Task& task_;
  std::vector<WeightedRule> rules_;
};

}  // namespace

Result<std::unique_ptr<Scorer>> make_rule_scorer(const Task& task,
                                                 std::span<const std::string> rules) {
  std::vector<WeightedRule> weighted;
  for (const std::string& rule : rules) {
    WEFT_TRY(weighted.emplace_back(), parse_rule(task, rule));
  }
  return std::unique_ptr<Scorer>(std::make_unique<RuleScorer>(task, std::move(weighted)));
}

}  // namespace weft
