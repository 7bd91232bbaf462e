#pragma once
// Fields: the members of a request's JSON object, read by type, with vLLM's errors where a type is
// wrong. Borrows the object. One thread.
//
// Null counts as absent. As vLLM's models do, an integer may be given as 4, 4.0 or "4", a number as
// 0.5 or "0.5", a flag as true or "true"; unlike them, a boolean is never a number.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/format/json.h"
#include "weft/tensor/on_update.h"

namespace weft {

class Fields {
 public:
  // `place` is where the object stands, "body" or "body.sampling_params". `object` must outlive
  // this.
  Fields(const boost::json::object& object, std::string place)
      : object_(&object), place_(std::move(place)) {}

  // The member; null pointer where it is absent or null.
  const boost::json::value* try_find(std::string_view name) const;
  std::string place_of(std::string_view name) const;

  // All errors: kInvalidArgument with the place as param.
  Result<std::optional<std::int64_t>> integer(std::string_view name) const;
  Result<std::optional<double>> number(std::string_view name) const;
  Result<std::optional<bool>> flag(std::string_view name) const;
  Result<std::optional<std::string>> text(std::string_view name) const;
  // A list of integers; nothing where absent.
  Result<std::optional<std::vector<std::int64_t>>> integers(std::string_view name) const;
  // A string or a list of strings.
  Result<std::vector<std::string>> texts(std::string_view name) const;
  Result<const boost::json::object*> try_object(std::string_view name) const;

  // The value of each, or `otherwise`.
  Result<std::int64_t> integer(std::string_view name, std::int64_t otherwise) const;
  Result<double> number(std::string_view name, double otherwise) const;
  Result<bool> flag(std::string_view name, bool otherwise) const;

 private:
  const boost::json::object* object_;
  std::string place_;
};

// How an error shows a value: strings bare, objects and lists by their size. Source: the recorded
// answers.
std::string shown(const boost::json::value& value);

// One integer, wherever it stands; `place` is for the error.
Result<std::int64_t> read_integer(const boost::json::value& value, std::string_view place);

// "on_update", as generation requests and commits have it.
Result<std::optional<OnUpdate>> parse_on_update(const Fields& fields);

// true, false, 1, 0, yes, no, on, off, t, f, y, n in any case, as vLLM's query flags. Errors: as
// above.
Result<bool> parse_flag(std::string_view text, std::string_view place);

}  // namespace weft
