#include "weft/trainer/config_check.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "weft/http/message.h"
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

Result<void> check_words(const TrainConfig& config) {
  const std::vector<std::string> schedules{"constant", "linear", "cosine"};
  WEFT_TRY_VOID(check_word("algorithm", config.algorithm,
                           {"sft", "reward_model", "ppo", "grpo", "rloo", "dpo"}));
  WEFT_TRY_VOID(check_word("sft.schedule", config.sft.schedule, schedules));
  WEFT_TRY_VOID(check_word("reward_model.schedule", config.reward_model.schedule, schedules));
  WEFT_TRY_VOID(check_word("rl.schedule", config.rl.schedule, schedules));
  WEFT_TRY_VOID(check_word("kl.in", config.kl.in, {"loss", "reward"}));
  WEFT_TRY_VOID(check_word("kl.estimator", config.kl.estimator, {"k1", "k2", "k3"}));
  WEFT_TRY_VOID(
      check_word("grpo.mean_over", config.grpo.mean_over, {"tokens", "answers", "longest"}));
  WEFT_TRY_VOID(check_word("server.deltas", config.server.deltas, {"auto", "on", "off"}));
  return check_word("dpo.loss", config.dpo.loss, {"dpo", "ipo"});
}

// What an algorithm asks of the keys of others.
Result<void> check_algorithm(const TrainConfig& config) {
  const std::string& algorithm = config.algorithm;
  if (!uses_section(config, "rl")) return {};
  if (algorithm != "ppo" && config.rl.group_size < 2) {
    return wrong(
        fmt::format("rl.group_size is 1, but algorithm = \"{}\" compares answers to one "
                    "question: it must be 2 or more",
                    algorithm));
  }
  if (config.kl.target > 0 && config.kl.coefficient == 0) {
    return wrong("kl.target is set, but kl.coefficient is 0, and would stay so");
  }
  if (algorithm == "rloo" && config.kl.coefficient > 0 && config.kl.in == "loss") {
    return wrong("kl.in is `loss`, but algorithm = \"rloo\" charges the KL in the reward");
  }
  const std::uint64_t units = config.rl.prompts * (algorithm == "dpo" ? 1 : config.rl.group_size);
  if (config.rl.minibatches > units) {
    return wrong(fmt::format("rl.minibatches is {}, more than the {} {} of a step",
                             config.rl.minibatches, units,
                             algorithm == "dpo" ? "pairs" : "answers"));
  }
  return {};
}

Result<void> check_url(std::string_view key, const std::string& text) {
  if (auto url = http::Url::parse(text); !url) {
    return std::move(url).error().with_context(key);
  }
  return {};
}

Result<void> check_score(const ScoreSection& score) {
  WEFT_TRY_VOID(check_word("score.kind", score.kind, {"rule", "reward_model", "http"}));
  if (score.kind != "reward_model" && !score.model.empty()) {
    return wrong("score.model is set, so score.kind must be `reward_model`");
  }
  WEFT_TRY_VOID(check_word("score.on_failure", score.on_failure, {"stop", "drop"}));
  if (score.kind == "http" && score.url.empty()) {
    return wrong("score.kind is `http`, so score.url must name the scorer");
  }
  if (score.kind != "http" && !score.url.empty()) {
    return wrong("score.url is set, so score.kind must be `http`");
  }
  if (score.kind == "http") return check_url("score.url", score.url);
  return {};
}

Result<void> check_server(const ServerSection& server) {
  if (server.spawn != server.url.empty()) {
    return wrong(server.spawn ? "server.url is set, so server.spawn must be false"
                              : "server.spawn is false, so server.url must name a server");
  }
  for (auto url = server.url.begin(); url != server.url.end(); ++url) {
    WEFT_TRY_VOID(check_url("server.url", *url));
    if (std::find(server.url.begin(), url, *url) != url) {
      return wrong(fmt::format("server.url names {} twice", *url));
    }
  }
  return {};
}

}  // namespace

Result<void> check_config(const TrainConfig& config) {
  WEFT_TRY_VOID(check_words(config));
  WEFT_TRY_VOID(check_model(config.model));
  WEFT_TRY_VOID(check_algorithm(config));
  WEFT_TRY_VOID(check_score(config.score));
  WEFT_TRY_VOID(check_task(config));
  return check_server(config.server);
}

bool uses_section(const TrainConfig& config, std::string_view section) {
  const std::string& algorithm = config.algorithm;
  const bool is_online = algorithm != "sft" && algorithm != "reward_model";
  if (section == "rl" || section == "score" || section == "flow") return is_online;
  if (section == "kl") return is_online && algorithm != "dpo";
  if (section == "server" || section == "check") return algorithm != "reward_model";
  if (section == "reward_model") {
    return algorithm == section ||
           (is_online && config.score.kind == section && config.score.model.empty());
  }
  const bool is_algorithm =
      section == "ppo" || section == "grpo" || section == "rloo" || section == "dpo";
  return !is_algorithm || section == algorithm;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  const auto nearest = std::ranges::min_element(
      known, {}, [&](const std::string& other) { return edit_distance(word, other); });
  const bool is_near = nearest != known.end() &&
                       edit_distance(word, *nearest) <= std::max<std::size_t>(2, word.size() / 3);
  return is_near ? fmt::format("; did you mean `{}`?", *nearest) : "";
}

}  // namespace weft
