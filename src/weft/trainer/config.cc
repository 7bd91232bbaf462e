#include "weft/trainer/config.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "weft/base/file.h"
#include "weft/trainer/tasks.h"

namespace weft {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::max();

// What a value may be; for text and lists nothing.
struct Range {
  double least = 0;
  double most = kNoLimit;
};

// The table: every key once, with its range and its meaning. `visit` is called as
// visit(section, key, value, range, help), section by section; section "" is the top of the file.
template <typename Config, typename Visit>
void visit_keys(Config& config, Visit&& visit) {
  visit("", "seed", config.seed, Range{0, 9e15}, "of everything random; same seed, same run");
  visit("", "out", config.out, Range{}, "folder for all results; made if it is not there");
  visit("", "threads", config.threads, Range{1, 1024}, "libtorch's threads");

  auto& model = config.model;
  visit("model", "hidden_size", model.hidden_size, Range{2, 65536}, "a multiple of head_dim");
  visit("model", "intermediate_size", model.intermediate_size, Range{1, 65536}, "of the MLP");
  visit("model", "num_layers", model.num_layers, Range{1, 256}, "transformer layers");
  visit("model", "head_dim", model.head_dim, Range{2, 1024}, "of an attention head; even");
  visit("model", "max_position_embeddings", model.max_position_embeddings, Range{8, 65536},
        "tokens; the longest question and answer must fit");

  auto& task = config.task;
  visit("task", "name", task.name, Range{}, "`sort`, `add` or `smooth`");
  visit("task", "digits", task.digits, Range{1, 9},
        "sort, smooth: digits of a question; add: digits of each number");
  visit("task", "held_out", task.held_out, Range{1, 1e6},
        "problems that are never trained on, for the solve rate");

  auto& sft = config.sft;
  visit("sft", "max_steps", sft.max_steps, Range{0, 1e9},
        "steps on given answers at most; 0 leaves the random weights");
  visit("sft", "batch", sft.batch, Range{1, 1e6}, "problems a step");
  visit("sft", "learning_rate", sft.learning_rate, Range{0, kNoLimit}, "of AdamW (0.9, 0.98)");
  visit("sft", "warmup_steps", sft.warmup_steps, Range{0, 1e9}, "of a linear warm-up");
  visit("sft", "eval_every", sft.eval_every, Range{1, 1e9}, "steps between looks at `stop_at`");
  visit("sft", "stop_at", sft.stop_at, Range{0, 1},
        "ends at this greedy held-out solve rate, to leave room for GRPO");

  auto& grpo = config.grpo;
  visit("grpo", "steps", grpo.steps, Range{1, 1e9}, "each publishes a version");
  visit("grpo", "prompts", grpo.prompts, Range{1, 1e6}, "questions a step, one request each");
  visit("grpo", "group_size", grpo.group_size, Range{2, 256}, "answers a question");
  visit("grpo", "temperature", grpo.temperature, Range{1, 1},
        "of sampling; 1, as losses use the model's own log-probabilities");
  visit("grpo", "learning_rate", grpo.learning_rate, Range{0, kNoLimit},
        "of AdamW (0.9, 0.95), falls linearly to about 0 over the steps");
  visit("grpo", "warmup_steps", grpo.warmup_steps, Range{0, 1e9}, "of a linear warm-up");
  visit("grpo", "clip_low", grpo.clip_low, Range{0, 1}, "ratios below 1 - this are clipped");
  visit("grpo", "clip_high", grpo.clip_high, Range{0, 10}, "ratios above 1 + this are clipped");
  visit("grpo", "max_grad_norm", grpo.max_grad_norm, Range{0, kNoLimit},
        "longer gradients are scaled down to it");
  visit("grpo", "micro_batch", grpo.micro_batch, Range{1, 1e6},
        "sequences in one forward and backward pass");
  visit("grpo", "eval_every", grpo.eval_every, Range{1, 1e9},
        "steps between measurements of the held-out solve rate through the server");

  auto& server = config.server;
  visit("server", "spawn", server.spawn, Range{},
        "start `weft serve --deterministic` beside the trainer and stop it at the end");
  visit("server", "url", server.url, Range{},
        "running servers instead, for example [\"http://127.0.0.1:8000\"]");
  visit("server", "threads", server.threads, Range{1, 1024}, "of a spawned server");
  visit("server", "deltas", server.deltas, Range{},
        "send what changed since the last version, which is kept in memory for it");
  visit("server", "start_timeout_s", server.start_timeout_s, Range{0.1, 86400},
        "seconds until a spawned server must answer");
  visit("server", "request_timeout_s", server.request_timeout_s, Range{0.1, 86400},
        "seconds that one request may take");

  auto& check = config.check;
  visit("check", "max_logprob_diff", check.max_logprob_diff, Range{0, kNoLimit},
        "largest difference between trainer's and server's log-probability of a token");
  visit("check", "rescored_sequences", check.rescored_sequences, Range{1, 1e9},
        "answers a step that are scored again, bit for bit, under the version they name");
  visit("check", "min_discriminating_share", check.min_discriminating_share, Range{0, 1},
        "least share of rescored tokens that the version before would have scored otherwise");

  visit("fault", "swap_labels", config.fault.swap_labels, Range{},
        "for tests only: exchange the labels of versions 0 and 1; the checks must catch it");
}

std::string full_key(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
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

// "; did you mean `x`?" when a known word is near, else "".
std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  const auto nearest = std::ranges::min_element(
      known, {}, [&](const std::string& other) { return edit_distance(word, other); });
  const bool is_near = nearest != known.end() &&
                       edit_distance(word, *nearest) <= std::max<std::size_t>(2, word.size() / 3);
  return is_near ? fmt::format("; did you mean `{}`?", *nearest) : "";
}

// Reads one file into a config; the first error stays.
class Reader {
 public:
  Reader(const toml::table& root, std::string_view file) : root_(root), file_(file) {}

  template <typename T>
  void operator()(std::string_view section, std::string_view key, T& value, Range range,
                  std::string_view) {
    if (section.empty()) {
      top_.emplace_back(key);
    } else {
      if (sections_.empty() || sections_.back().first != section) {
        sections_.push_back({std::string(section), {}});
      }
      sections_.back().second.emplace_back(key);
    }
    const toml::table* table = section.empty() ? &root_ : root_[section].as_table();
    const toml::node* node = table == nullptr ? nullptr : table->get(key);
    if (node == nullptr || error_) return;
    const bool is_read = read(*node, value);
    if (!is_read)
      return fail(*node, fmt::format("{} must be {}", full_key(section, key), kind(value)));
    if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      const double number = static_cast<double>(value);
      if (!(number >= range.least && number <= range.most)) {
        fail(*node, range.most == kNoLimit
                        ? fmt::format("{} must be at least {}", full_key(section, key), range.least)
                        : fmt::format("{} must be from {} to {}", full_key(section, key),
                                      range.least, range.most));
      }
    }
  }

  // After all keys were visited: the first error, among them unknown sections and keys.
  std::optional<Error> finish() {
    std::vector<std::string> top = top_;
    for (const auto& section : sections_) top.push_back(section.first);
    check_known(root_, "", top);
    for (const auto& [name, keys] : sections_) {
      const toml::node* node = root_.get(name);
      if (node == nullptr) continue;
      if (node->is_table()) {
        check_known(*node->as_table(), name, keys);
      } else {
        fail(*node, fmt::format("{} must be a section, [{}]", name, name));
      }
    }
    return error_;
  }

 private:
  static bool read(const toml::node& node, bool& value) {
    return assign(node.value_exact<bool>(), value);
  }
  static bool read(const toml::node& node, double& value) {
    if (!node.is_number()) return false;  // an integer will do for a number
    return assign(node.value<double>(), value);
  }
  static bool read(const toml::node& node, std::uint64_t& value) {
    const auto number = node.value_exact<std::int64_t>();
    if (!number || *number < 0) return false;
    value = static_cast<std::uint64_t>(*number);
    return true;
  }
  static bool read(const toml::node& node, std::string& value) {
    return assign(node.value_exact<std::string>(), value);
  }
  static bool read(const toml::node& node, std::vector<std::string>& value) {
    if (!node.is_array()) return false;
    value.clear();
    for (const toml::node& element : *node.as_array()) {
      if (!read(element, value.emplace_back())) return false;
    }
    return true;
  }
  template <typename T>
  static bool assign(std::optional<T> from, T& to) {
    if (from) to = std::move(*from);
    return from.has_value();
  }

  static std::string_view kind(bool) { return "true or false"; }
  static std::string_view kind(double) { return "a number"; }
  static std::string_view kind(std::uint64_t) { return "a whole number, 0 or more"; }
  static std::string_view kind(const std::string&) { return "a string"; }
  static std::string_view kind(const std::vector<std::string>&) { return "a list of strings"; }

  void check_known(const toml::table& table, std::string_view section,
                   const std::vector<std::string>& known) {
    for (const auto& [key, node] : table) {
      if (std::ranges::find(known, key.str()) != known.end()) continue;
      fail(node, fmt::format("unknown {} `{}`{}", node.is_table() ? "section" : "key",
                             full_key(section, key.str()), suggestion(key.str(), known)));
    }
  }
  void fail(const toml::node& node, std::string message) {
    if (error_) return;
    error_ = Error(ErrorCode::kInvalidArgument,
                   fmt::format("{}:{}: {}", file_, node.source().begin.line, message));
  }

  const toml::table& root_;
  std::string_view file_;
  std::vector<std::string> top_;
  std::vector<std::pair<std::string, std::vector<std::string>>> sections_;
  std::optional<Error> error_;
};

// What the ranges of single keys cannot say.
Result<void> check_together(const TrainConfig& config, std::string_view file) {
  const auto wrong = [&](std::string message) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", file, message));
  };
  if (config.model.hidden_size % config.model.head_dim != 0 || config.model.head_dim % 2 != 0) {
    return wrong(
        fmt::format("model.hidden_size ({}) must be a multiple of model.head_dim ({}), and "
                    "that even",
                    config.model.hidden_size, config.model.head_dim));
  }
  if (config.server.spawn != config.server.url.empty()) {
    return wrong(config.server.spawn ? "server.url is set, so server.spawn must be false"
                                     : "server.spawn is false, so server.url must name a server");
  }
  const auto names = task_names();
  if (std::ranges::find(names, config.task.name) == names.end()) {
    return wrong(fmt::format("task.name is `{}`{}; the tasks are {}", config.task.name,
                             suggestion(config.task.name, {names.begin(), names.end()}),
                             fmt::join(names, ", ")));
  }
  return {};
}

std::string toml_value(bool value) {
  return value ? "true" : "false";
}
std::string toml_value(std::uint64_t value) {
  return std::to_string(value);
}
std::string toml_value(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}
std::string toml_value(const std::string& value) {
  std::ostringstream out;
  out << toml::value<std::string>(value);
  return std::move(out).str();
}
std::string toml_value(const std::vector<std::string>& value) {
  std::vector<std::string> items;
  for (const std::string& item : value) items.push_back(toml_value(item));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

}  // namespace

Result<TrainConfig> parse_train_config(std::string_view toml, std::string_view name) {
  toml::table root;
  try {
    root = toml::parse(toml);
  } catch (const toml::parse_error& error) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}:{}: {}", name, error.source().begin.line, error.description()));
  }
  TrainConfig config;
  Reader reader(root, name);
  visit_keys(config, reader);
  if (auto error = reader.finish()) return std::move(*error);
  WEFT_TRY_VOID(check_together(config, name));
  return config;
}

Result<TrainConfig> blocking_load_train_config(const std::filesystem::path& path) {
  WEFT_TRY(const std::string text, blocking_read_file(path));
  return parse_train_config(text, path.string());
}

std::string train_config_toml(const TrainConfig& config) {
  std::string text, current;
  visit_keys(config, [&](std::string_view section, std::string_view key, const auto& value, Range,
                         std::string_view help) {
    if (section != current) text += fmt::format("\n[{}]\n", current = section);
    text += fmt::format("# {}\n{} = {}\n", help, key, toml_value(value));
  });
  return text;
}

}  // namespace weft
