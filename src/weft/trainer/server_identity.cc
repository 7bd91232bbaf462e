#include "weft/trainer/server_identity.h"

#include <boost/json.hpp>
#include <fmt/format.h>

#include "weft/format/json.h"
#include "weft/format/manifest.h"
#include "weft/trainer/tasks.h"
#include "weft/transfer/peer_error.h"

namespace weft {
namespace {

// Errors: of a server that wants another key, or one, with what helps; of the connection.
Result<http::Response> blocking_send(http::Client& server, std::string method, std::string target,
                                     std::string body = "") {
  http::Request request;
  request.method = std::move(method);
  request.target = std::move(target);
  if (!body.empty()) request.headers = {{"Content-Type", "application/json"}};
  request.body = std::move(body);
  WEFT_TRY(http::Response response, server.blocking_send(request));
  if (response.status != error_traits(ErrorCode::kUnauthenticated).http_status) return response;
  return Error(ErrorCode::kUnauthenticated,
               "it asks for another key: --key, --key-file or WEFT_KEY must have its admin key");
}

Result<std::string> blocking_get(http::Client& server, std::string target) {
  WEFT_TRY(http::Response response, blocking_send(server, "GET", std::move(target)));
  if (response.status != 200) return peer_error(response);
  return std::move(response.body);
}

const boost::json::value* try_field(const boost::json::value& value, std::string_view name) {
  const auto* object = value.if_object();
  return object == nullptr ? nullptr : object->if_contains(name);
}

Result<void> check_tensors(const Manifest& served, const WeightLayout& layout) {
  const auto differs = [](std::string what) {
    return Error(ErrorCode::kConflict, "it serves another model: " + std::move(what));
  };
  std::size_t found = 0;
  for (const ManifestTensor& tensor : served.tensors) {
    const auto place = layout.try_find(tensor.spec.name);
    if (!place) return differs(fmt::format("its tensor {} is not in this run's", tensor.spec.name));
    const Shape& shape = layout.tensors()[*place].shape;
    if (tensor.spec.shape != shape) {
      return differs(fmt::format("its {} is {}, this run's {}", tensor.spec.name,
                                 shape_text(tensor.spec.shape), shape_text(shape)));
    }
    ++found;
  }
  if (found < layout.tensors().size()) {
    return differs(fmt::format("it has {} tensors, this run's {}", found, layout.tensors().size()));
  }
  return {};
}

Result<void> blocking_check_vocabulary(http::Client& server) {
  WEFT_TRY(const http::Response response,
           blocking_send(server, "POST", "/tokenize",
                         boost::json::serialize(boost::json::object{
                             {"prompt", Vocabulary::kCharacters}, {"add_special_tokens", false}})));
  if (response.status != 200) return {};
  WEFT_TRY(const boost::json::value root, parse_json(response.body));
  const auto* tokens = try_field(root, "tokens");
  const auto expected = Vocabulary::encode(Vocabulary::kCharacters);
  if (tokens == nullptr || *tokens != boost::json::array(expected.begin(), expected.end())) {
    return Error(
        ErrorCode::kConflict,
        fmt::format("it has another vocabulary: the tokens of `{}` must be 0 to {}, not {}",
                    Vocabulary::kCharacters, expected.size() - 1,
                    tokens == nullptr ? "none" : boost::json::serialize(*tokens)));
  }
  return {};
}

// Keys are asked for before anything else; these requests are wrong, and change nothing.
Result<void> blocking_check_key(http::Client& server) {
  for (const char* target : {"/inference/v1/generate", "/weft/v1/uploads"}) {
    WEFT_TRY_VOID(blocking_send(server, "POST", target, "{}"));
  }
  return {};
}

}  // namespace

Result<void> blocking_check_server(http::Client& server, const WeightLayout& layout) {
  WEFT_TRY_VOID(blocking_check_key(server));
  WEFT_TRY(const std::string current, blocking_get(server, "/weft/v1/versions/current"));
  WEFT_TRY(const boost::json::value version, parse_json(current));
  const auto* id = try_field(version, "id");
  if (id == nullptr || !id->is_string()) {
    return Error(ErrorCode::kCorrupt, "/weft/v1/versions/current must have an id");
  }
  WEFT_TRY(const std::string json,
           blocking_get(server, fmt::format("/weft/v1/versions/{}/manifest",
                                            std::string_view(id->get_string()))));
  WEFT_TRY(const Manifest served, parse_manifest(json));
  WEFT_TRY_VOID(check_tensors(served, layout));
  return blocking_check_vocabulary(server);
}

}  // namespace weft
