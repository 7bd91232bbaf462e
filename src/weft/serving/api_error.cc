#include "weft/serving/api_error.h"

#include <boost/json.hpp>
#include <fmt/core.h>

namespace weft {
namespace {

constexpr std::string_view kWholeBody = "body";

bool is_validation(const Error& error) {
  const std::string& param = error.param();
  return error.code() == ErrorCode::kInvalidArgument &&
         (param == kWholeBody || param.starts_with("body.") || param.starts_with("query."));
}

}  // namespace

Error validation_error(std::string_view type, std::string_view place, std::string_view reason,
                       std::string_view input) {
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "1 validation error:\n  {{'type': '{}', 'loc': '{}', 'msg': '{}', 'input': '{}'}}", type,
          place, reason, input),
      std::string(place));
}

Error missing_field_error(std::string_view place) {
  return validation_error("missing", place, "Field required", "None");
}

Error body_error(std::string message) {
  return Error(ErrorCode::kInvalidArgument, std::move(message), std::string(kWholeBody));
}

Error parameter_error(std::string_view name, std::string_view value, std::string_view reason) {
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{} {}, got {}. (parameter={}, value={})", name, reason, value, name, value),
      std::string(name));
}

http::Response api_error_response(const Error& error) {
  if (!is_validation(error)) return http::error_response(error);
  boost::json::value param = nullptr;
  if (error.param() != kWholeBody) param = error.param();
  const boost::json::object body = {
      {"error",
       {{"message", error.message()}, {"type", "Bad Request"}, {"param", param}, {"code", 400}}}};
  return http::json_response(boost::json::serialize(body), 400);
}

}  // namespace weft
