#include "weft/format/json.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <fmt/core.h>

#include "weft/base/check.h"

namespace weft {
namespace {

namespace json = boost::json;

// Builds the value as json::parser does, and refuses a name that its object has already.
class Builder {
 public:
  // NOLINTBEGIN(readability-identifier-naming): the names that Boost.JSON's parser asks for.
  static constexpr std::size_t max_object_size = json::object::max_size();
  static constexpr std::size_t max_array_size = json::array::max_size();
  static constexpr std::size_t max_key_size = json::string::max_size();
  static constexpr std::size_t max_string_size = json::string::max_size();
  // NOLINTEND(readability-identifier-naming)

  Builder() { stack_.reset(); }
  json::value release() { return stack_.release(); }
  const std::string& reason() const { return reason_; }

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) { return names_.emplace_back(), true; }
  bool on_object_end(std::size_t count, json::error_code&) {
    names_.pop_back();
    return stack_.push_object(count), true;
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(std::size_t count, json::error_code&) { return stack_.push_array(count), true; }
  bool on_key_part(json::string_view part, std::size_t, json::error_code&) {
    return key_.append(part), true;
  }
  bool on_key(json::string_view part, std::size_t, json::error_code& error) {
    key_.append(part);
    stack_.push_key(key_);
    const auto [at, is_new] = names_.back().insert(std::move(key_));
    key_.clear();
    if (is_new) return true;
    reason_ = fmt::format("`{}` is named twice in one object", *at);
    error = json::error::extra_data;
    return false;
  }
  bool on_string_part(json::string_view part, std::size_t, json::error_code&) {
    return stack_.push_chars(part), true;
  }
  bool on_string(json::string_view part, std::size_t, json::error_code&) {
    return stack_.push_string(part), true;
  }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(std::int64_t number, json::string_view, json::error_code&) {
    return stack_.push_int64(number), true;
  }
  bool on_uint64(std::uint64_t number, json::string_view, json::error_code&) {
    return stack_.push_uint64(number), true;
  }
  bool on_double(double number, json::string_view, json::error_code&) {
    return stack_.push_double(number), true;
  }
  bool on_bool(bool value, json::error_code&) { return stack_.push_bool(value), true; }
  bool on_null(json::error_code&) { return stack_.push_null(), true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  json::value_stack stack_;
  std::string key_;
  std::vector<std::unordered_set<std::string>> names_;  // of each open object
  std::string reason_;
};

// UTF-8 sorts as code points do. UTF-16 differs in one place: U+E000 to U+FFFF (lead bytes EE and
// EF) come after what needs surrogates (lead bytes F0 to F4).
bool utf16_less(std::string_view a, std::string_view b) {
  const auto rank = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte == 0xEE || byte == 0xEF ? byte + 0x10 : byte;
  };
  return std::ranges::lexicographical_compare(a, b, {}, rank, rank);
}

void write_string(std::string_view text, std::string& out) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
  constexpr std::string_view kEscapes = "\"\\bfnrt";
  out += '"';
  for (const char c : text) {
    const std::size_t escape = kEscaped.find(c);
    if (escape != std::string_view::npos) {
      out += {'\\', kEscapes[escape]};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

void write_value(const json::value& value, std::string& out);

void write_array(const json::array& array, std::string& out) {
  out += '[';
  for (const json::value& item : array) {
    if (&item != array.data()) out += ',';
    write_value(item, out);
  }
  out += ']';
}

void write_object(const json::object& object, std::string& out) {
  std::vector<const json::key_value_pair*> members;
  for (const auto& member : object) members.push_back(&member);
  std::ranges::sort(members, utf16_less, [](const auto* member) { return member->key(); });
  out += '{';
  for (const auto* member : members) {
    if (member != members.front()) out += ',';
    write_string(member->key(), out);
    out += ':';
    write_value(member->value(), out);
  }
  out += '}';
}

void write_value(const json::value& value, std::string& out) {
  WEFT_CHECK(!value.is_double());
  switch (value.kind()) {
    case json::kind::null:
      out += "null";
      break;
    case json::kind::bool_:
      out += value.get_bool() ? "true" : "false";
      break;
    case json::kind::int64:
      out += fmt::format("{}", value.get_int64());
      break;
    case json::kind::uint64:
      out += fmt::format("{}", value.get_uint64());
      break;
    case json::kind::double_:
      break;
    case json::kind::string:
      write_string(value.get_string(), out);
      break;
    case json::kind::array:
      write_array(value.get_array(), out);
      break;
    case json::kind::object:
      write_object(value.get_object(), out);
      break;
  }
}

}  // namespace

Result<json::value> parse_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::basic_parser<Builder> parser(options);
  json::error_code error;
  const std::size_t end = parser.write_some(false, text.data(), text.size(), error);
  if (!error && end != text.size()) error = json::error::extra_data;
  if (error) {
    const std::string& reason = parser.handler().reason();
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("not valid JSON at byte {}: {}", end,
                             reason.empty() ? error.message() : reason));
  }
  return parser.handler().release();
}

std::string string_member(const boost::json::object& object, std::string_view name) {
  const auto* const value = object.if_contains({name.data(), name.size()});
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

std::string canonical_json(const json::value& value) {
  std::string out;
  write_value(value, out);
  return out;
}

}  // namespace weft
