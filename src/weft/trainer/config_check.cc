#include "weft/trainer/config_check.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "weft/trainer/scorer.h"
#include "weft/trainer/tasks.h"

namespace weft {
namespace {

Error wrong(std::string message) {
  return Error(ErrorCode::kInvalidArgument, std::move(message));
}

// Source: Levenshtein; the usual one-row dynamic programme.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0u);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, changed}));
    }
  }
  return row.back();
}

Result<void> check_word(std::string_view key, const std::string& word,
                        const std::vector<std::string>& known) {
  if (std::ranges::find(known, word) != known.end()) return {};
  return wrong(fmt::format("{} is `{}`{}; it may be {}", key, word, suggestion(word, known),
                           fmt::join(known, ", ")));
}

Result<void> check_model(const ModelSection& model) {
  if (model.hidden_size % model.head_dim == 0 && model.head_dim % 2 == 0) return {};
  return wrong(
      fmt::format("model.hidden_size ({}) must be a multiple of model.head_dim ({}), and that even",
                  model.hidden_size, model.head_dim));
}

// The task must be there, with problems to hold out and to train on that the model can read.
Result<void> check_task(const TrainConfig& config) {
  const auto names = task_names();
  WEFT_TRY_VOID(check_word("task.name", config.task.name, {names.begin(), names.end()}));
  WEFT_TRY(const auto task, make_task(config.task.name, config.task.digits));
  WEFT_TRY_VOID(ProblemSource::check_held_out(*task, config.task.held_out));
  Random random(0);
  const std::uint64_t longest = task->draw(random).question.size() + task->max_answer_tokens();
  if (longest > config.model.max_position_embeddings) {
    return wrong(
        fmt::format("a question and its answer have {} tokens, but "
                    "model.max_position_embeddings is {}",
                    longest, config.model.max_position_embeddings));
  }
  if (config.score.kind == "rule") {
    if (auto rules = make_rule_scorer(*task, config.score.rules); !rules) {
      return std::move(rules).error().with_context("score.rules");
    }
  }
  return {};
}

Result<void> check_score(const ScoreSection& score) {
  WEFT_TRY_VOID(check_word("score.kind", score.kind, {"rule", "http"}));
  WEFT_TRY_VOID(check_word("score.on_failure", score.on_failure, {"stop", "drop"}));
  if (score.kind == "http" && score.url.empty()) {
    return wrong("score.kind is `http`, so score.url must name the scorer");
  }
  if (score.kind != "http" && !score.url.empty()) {
    return wrong("score.url is set, so score.kind must be `http`");
  }
  return {};
}

Result<void> check_server(const ServerSection& server) {
  if (server.spawn != server.url.empty()) {
    return wrong(server.spawn ? "server.url is set, so server.spawn must be false"
                              : "server.spawn is false, so server.url must name a server");
  }
  return {};
}

}  // namespace

Result<void> check_config(const TrainConfig& config) {
  WEFT_TRY_VOID(check_model(config.model));
  WEFT_TRY_VOID(check_score(config.score));
  WEFT_TRY_VOID(check_task(config));
  return check_server(config.server);
}

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  const auto nearest = std::ranges::min_element(
      known, {}, [&](const std::string& other) { return edit_distance(word, other); });
  const bool is_near = nearest != known.end() &&
                       edit_distance(word, *nearest) <= std::max<std::size_t>(2, word.size() / 3);
  return is_near ? fmt::format("; did you mean `{}`?", *nearest) : "";
}

}  // namespace weft
