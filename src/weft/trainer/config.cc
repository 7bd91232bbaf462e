#include "weft/trainer/config.h"

#include <algorithm>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "weft/base/file.h"
#include "weft/trainer/config_check.h"
#include "weft/trainer/config_keys-inl.h"

namespace weft {
namespace {

std::string full_key(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
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
  if (auto sound = check_config(config); !sound) {
    return std::move(sound).error().with_context(name);
  }
  for (const auto& [section, node] : root) {
    if (!node.is_table() || uses_section(config, section.str())) continue;
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}:{}: [{}] has no meaning with algorithm = \"{}\"{}", name,
                             node.source().begin.line, section.str(), config.algorithm,
                             section == "reward_model" ? " and what [score] says" : ""));
  }
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
    if (!uses_section(config, section)) return;
    if (section != current) text += fmt::format("\n[{}]\n", current = section);
    text += fmt::format("# {}\n{} = {}\n", help, key, toml_value(value));
  });
  return text;
}

}  // namespace weft
