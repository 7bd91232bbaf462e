#include "weft/serving/fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/serving/api_error.h"

namespace weft {
namespace json = boost::json;
namespace {

std::string_view view_of(const json::value& value) {
  const json::string& text = value.get_string();
  return {text.data(), text.size()};
}

template <typename Number>
std::optional<Number> try_parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Result<double> read_number(const json::value& value, std::string_view place) {
  std::optional<double> number;
  if (value.is_number()) number = value.to_number<double>();
  if (value.is_string()) number = try_parse_number<double>(view_of(value));
  // NaN and infinity can be spelled as strings; no parameter has a meaning for them.
  if (number && std::isfinite(*number)) return *number;
  return value.is_string()
             ? validation_error(
                   "float_parsing", place,
                   "Input should be a valid number, unable to parse string as a number",
                   shown(value))
             : validation_error("float_type", place, "Input should be a valid number",
                                shown(value));
}

Result<bool> read_flag(const json::value& value, std::string_view place) {
  if (value.is_bool()) return value.get_bool();
  if (value.is_string()) return parse_flag(view_of(value), place);
  return validation_error("bool_type", place, "Input should be a valid boolean", shown(value));
}

Result<std::string> read_text(const json::value& value, std::string_view place) {
  if (value.is_string()) return std::string(view_of(value));
  return validation_error("string_type", place, "Input should be a valid string", shown(value));
}

template <typename T>
Result<T> or_default(Result<std::optional<T>> result, T otherwise) {
  if (!result) return std::move(result).error();
  return result->value_or(otherwise);
}

}  // namespace

std::string shown(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "None";
    case json::kind::bool_:
      return value.get_bool() ? "True" : "False";
    case json::kind::string: {
      const std::string_view whole = view_of(value);
      std::size_t end = std::min<std::size_t>(whole.size(), 100);
      const auto is_continuation = [&](std::size_t i) {
        return i < whole.size() && (static_cast<unsigned char>(whole[i]) & 0xC0) == 0x80;
      };
      while (end > 0 && is_continuation(end)) --end;  // never half a character
      return std::string(whole.substr(0, end));
    }
    case json::kind::object:
      return fmt::format("<dict of {} items>", value.get_object().size());
    case json::kind::array:
      return fmt::format("<list of {} items>", value.get_array().size());
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return json::serialize(value);
  }
  return "";
}

Result<std::int64_t> read_integer(const json::value& value, std::string_view place) {
  constexpr double kLimit = 9'007'199'254'740'992.0;  // 2^53: integral doubles up to here are exact
  if (value.is_int64()) return value.get_int64();
  if (value.is_uint64()) {
    return validation_error("int_type", place, "Input should be a valid integer below 2^63",
                            shown(value));
  }
  if (value.is_double()) {
    const double number = value.get_double();
    if (std::abs(number) <= kLimit && number == std::floor(number)) {
      return static_cast<std::int64_t>(number);
    }
    return validation_error("int_from_float", place,
                            "Input should be a valid integer, got a number with a fractional part",
                            shown(value));
  }
  if (value.is_string()) {
    if (const auto number = try_parse_number<std::int64_t>(view_of(value))) return *number;
    return validation_error("int_parsing", place,
                            "Input should be a valid integer, unable to parse string as an integer",
                            shown(value));
  }
  return validation_error("int_type", place, "Input should be a valid integer", shown(value));
}

Result<std::optional<OnUpdate>> parse_on_update(const Fields& fields) {
  WEFT_TRY(const auto name, fields.text("on_update"));
  if (!name) return std::optional<OnUpdate>();
  const auto value = try_parse_on_update(*name);
  if (value) return value;
  return validation_error("literal_error", fields.place_of("on_update"),
                          "Input should be 'continue', 'recompute', 'finish' or 'abort'", *name);
}

Result<bool> parse_flag(std::string_view text, std::string_view place) {
  constexpr std::array<std::string_view, 6> kTrue = {"true", "1", "yes", "on", "t", "y"};
  constexpr std::array<std::string_view, 6> kFalse = {"false", "0", "no", "off", "f", "n"};
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  if (std::ranges::find(kTrue, lower) != kTrue.end()) return true;
  if (std::ranges::find(kFalse, lower) != kFalse.end()) return false;
  return validation_error("bool_parsing", place,
                          "Input should be a valid boolean, unable to interpret input", text);
}

const json::value* Fields::try_find(std::string_view name) const {
  const json::value* value = object_->if_contains({name.data(), name.size()});
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string Fields::place_of(std::string_view name) const {
  return fmt::format("{}.{}", place_, name);
}

Result<std::optional<std::int64_t>> Fields::integer(std::string_view name) const {
  const json::value* value = try_find(name);
  if (value == nullptr) return std::optional<std::int64_t>();
  WEFT_TRY(const std::int64_t number, read_integer(*value, place_of(name)));
  return std::optional(number);
}

Result<std::optional<double>> Fields::number(std::string_view name) const {
  const json::value* value = try_find(name);
  if (value == nullptr) return std::optional<double>();
  WEFT_TRY(const double number, read_number(*value, place_of(name)));
  return std::optional(number);
}

Result<std::optional<bool>> Fields::flag(std::string_view name) const {
  const json::value* value = try_find(name);
  if (value == nullptr) return std::optional<bool>();
  WEFT_TRY(const bool flag, read_flag(*value, place_of(name)));
  return std::optional(flag);
}

Result<std::optional<std::string>> Fields::text(std::string_view name) const {
  const json::value* value = try_find(name);
  if (value == nullptr) return std::optional<std::string>();
  WEFT_TRY(std::string text, read_text(*value, place_of(name)));
  return std::optional(std::move(text));
}

Result<std::optional<std::vector<std::int64_t>>> Fields::integers(std::string_view name) const {
  const json::value* value = try_find(name);
  if (value == nullptr) return std::optional<std::vector<std::int64_t>>();
  if (!value->is_array()) {
    return validation_error("list_type", place_of(name), "Input should be a valid list",
                            shown(*value));
  }
  std::vector<std::int64_t> numbers;
  numbers.reserve(value->get_array().size());
  for (const json::value& item : value->get_array()) {
    WEFT_TRY(const std::int64_t number,
             read_integer(item, fmt::format("{}.{}", place_of(name), numbers.size())));
    numbers.push_back(number);
  }
  return std::optional(std::move(numbers));
}

Result<std::vector<std::string>> Fields::texts(std::string_view name) const {
  std::vector<std::string> texts;
  const json::value* value = try_find(name);
  if (value == nullptr) return texts;
  if (!value->is_array()) {
    WEFT_TRY(std::string text, read_text(*value, place_of(name)));
    texts.push_back(std::move(text));
    return texts;
  }
  for (const json::value& item : value->get_array()) {
    WEFT_TRY(std::string text, read_text(item, fmt::format("{}.{}", place_of(name), texts.size())));
    texts.push_back(std::move(text));
  }
  return texts;
}

Result<const json::object*> Fields::try_object(std::string_view name) const {
  const json::value* value = try_find(name);
  if (value == nullptr) return static_cast<const json::object*>(nullptr);
  if (value->is_object()) return &value->get_object();
  return validation_error("dict_type", place_of(name), "Input should be a valid dictionary",
                          shown(*value));
}

Result<std::int64_t> Fields::integer(std::string_view name, std::int64_t otherwise) const {
  return or_default(integer(name), otherwise);
}
Result<double> Fields::number(std::string_view name, double otherwise) const {
  return or_default(number(name), otherwise);
}
Result<bool> Fields::flag(std::string_view name, bool otherwise) const {
  return or_default(flag(name), otherwise);
}

}  // namespace weft
