#include "weft/serving/routes.h"

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/serving/api_error.h"
#include "weft/serving/control.h"
#include "weft/serving/generation_request.h"
#include "weft/serving/metrics.h"

namespace weft {
namespace json = boost::json;
namespace {

using http::Exchange;
using http::Request;
using http::Response;
using ExchangePtr = std::shared_ptr<Exchange>;

constexpr std::uint64_t kControlBodyBytes = 1u << 20;
constexpr std::uint64_t kGenerationBodyBytes = 32u << 20;

Response json_answer(const json::value& value) {
  return http::json_response(json::serialize(value));
}

json::object models_answer(const ServedModel& model) {
  const json::object permission = {{"id", "modelperm-" + model.name},
                                   {"object", "model_permission"},
                                   {"created", model.created_s},
                                   {"allow_create_engine", false},
                                   {"allow_sampling", true},
                                   {"allow_logprobs", true},
                                   {"allow_search_indices", false},
                                   {"allow_view", true},
                                   {"allow_fine_tuning", false},
                                   {"organization", "*"},
                                   {"group", nullptr},
                                   {"is_blocking", false}};
  const json::object entry = {{"id", model.name},
                              {"object", "model"},
                              {"created", model.created_s},
                              {"owned_by", "weft"},
                              {"root", model.root},
                              {"parent", nullptr},
                              {"max_model_len", model.max_model_len},
                              {"permission", json::array{permission}}};
  return {{"object", "list"}, {"data", json::array{entry}}};
}

json::object model_config(const ServedModel& model) {
  return {{"model", model.root},
          {"served_model_name", model.name},
          {"dtype", "torch." + model.dtype},
          {"max_model_len", model.max_model_len},
          {"vocab_size", model.vocab_size},
          {"logprobs_mode", "raw_logprobs"},
          {"generation_config", "weft: end tokens only, sampling parameters are neutral"}};
}

Result<Response> server_info(const ServedModel& model, const Request& request) {
  const std::string_view format = request.try_query("config_format").value_or("text");
  if (format != "text" && format != "json") {
    return validation_error("literal_error", "query.config_format",
                            "Input should be 'text' or 'json'", format);
  }
  const json::object config = {
      {"model_config", model_config(model)},
      {"scheduler_config",
       {{"max_num_seqs", model.max_num_seqs}, {"deterministic", model.deterministic}}}};
  return json_answer({{"vllm_config", format == "json" ? json::value(config)
                                                       : json::value(json::serialize(config))},
                      {"vllm_env", json::object()},
                      {"system_env", {{"weft_version", model.weft_version}}}});
}

Result<json::object> json_body(const Request& request) {
  return parse_json_body(request.headers.try_get("Content-Type").value_or(""), request.body);
}

Result<Response> tokenize(const ServedModel& model, const Request& request) {
  WEFT_TRY(const json::object body, json_body(request));
  WEFT_TRY(const auto ids, parse_tokenize(body, model));
  json::value texts = nullptr;
  if (const json::value* wanted = body.if_contains("return_token_strs");
      wanted != nullptr && *wanted == true) {
    json::array list;
    for (const std::uint32_t id : ids) {
      list.emplace_back(model.tokenizer->try_id_to_token(id).value_or(""));
    }
    texts = std::move(list);
  }
  return json_answer({{"count", ids.size()},
                      {"max_model_len", model.max_model_len},
                      {"tokens", json::array(ids.begin(), ids.end())},
                      {"token_strs", std::move(texts)}});
}

Result<Response> detokenize(const ServedModel& model, const Request& request) {
  WEFT_TRY(const json::object body, json_body(request));
  WEFT_TRY(const auto ids, parse_detokenize(body, model));
  return json_answer({{"prompt", model.decode(ids, false)}});
}

// Anything thrown by a library ends here: one request fails, the server goes on.
http::Handler guarded(http::Handler handler) {
  return [handler = std::move(handler)](const Request& request, ExchangePtr exchange) {
    try {
      handler(request, exchange);
    } catch (const std::exception& error) {
      exchange->respond(api_error_response(Error(ErrorCode::kInternal, error.what())));
    }
  };
}

// For what can be answered at once.
http::Handler at_once(std::function<Result<Response>(const Request&)> answer) {
  return [answer = std::move(answer)](const Request& request, const ExchangePtr& exchange) {
    auto response = answer(request);
    exchange->respond(response ? *std::move(response) : api_error_response(response.error()));
  };
}

// For what is answered later, by whichever thread finishes it.
http::Handler later(std::function<void(const Request&, Reply)> act) {
  return [act = std::move(act)](const Request& request, const ExchangePtr& exchange) {
    act(request, [exchange](Result<Response> response) {
      exchange->respond(response ? *std::move(response) : api_error_response(response.error()));
    });
  };
}

// What may stand in a JSON answer as it is.
bool is_printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

using Parse = Result<GenerationRequest> (*)(const json::object&, const ServedModel&);

http::Handler generation(const ServingParts& parts, Parse parse) {
  return
      [&generations = parts.generations, &current = parts.model, &history = parts.target.history(),
       parse](const Request& request, const ExchangePtr& exchange) {
        auto body = json_body(request);
        if (!body) return exchange->respond(api_error_response(body.error()));
        const auto model = current.get();
        auto wanted = parse(*body, *model);
        if (!wanted) return exchange->respond(api_error_response(wanted.error()));
        if (wanted->min_version) {
          if (const auto passed = history.check(*wanted->min_version); !passed)
            return exchange->respond(api_error_response(passed.error()));
        }
        if (const auto id = request.headers.try_get("X-Request-Id"); id && is_printable(*id)) {
          wanted->request_id = *id;
        }
        generations.run(*std::move(wanted), model, exchange);
      };
}

struct Row {
  const char* method;
  const char* path;
  http::Handler handler;
  std::uint64_t body_limit_bytes = kControlBodyBytes;
};

// What changes the server needs the admin key; vLLM's prefixes the API key; asking needs none.
http::Access access_of(const Row& row, bool is_control) {
  const std::string_view path = row.path;
  if (path.starts_with("/v1/") || path.starts_with("/inference/")) return http::Access::kApi;
  return is_control && std::string_view(row.method) != "GET" ? http::Access::kAdmin
                                                             : http::Access::kOpen;
}

std::vector<Row> generation_rows(const ServingParts& parts) {
  const CurrentModel& model = parts.model;
  return {
      {"POST", "/v1/completions", generation(parts, parse_completion), kGenerationBodyBytes},
      {"POST", "/v1/chat/completions", generation(parts, parse_chat), kGenerationBodyBytes},
      {"POST", "/inference/v1/generate", generation(parts, parse_generate), kGenerationBodyBytes},
      {"POST", "/tokenize",
       at_once([&](const Request& request) { return tokenize(*model.get(), request); }),
       kGenerationBodyBytes},
      {"POST", "/detokenize",
       at_once([&](const Request& request) { return detokenize(*model.get(), request); }),
       kGenerationBodyBytes},
  };
}

Response metrics(const ServingParts& parts) {
  Response response;
  response.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}};
  response.body = render_metrics({parts.model.get()->name, parts.engine.stats(),
                                  parts.target.current(), parts.engine.is_paused(), parts.state()});
  return response;
}

std::vector<Row> information_rows(const ServingParts& parts) {
  const CurrentModel& model = parts.model;
  const auto empty = at_once([](const Request&) { return Response(); });
  return {
      {"GET", "/health", empty},
      {"GET", "/ping", empty},
      {"POST", "/ping", empty},
      {"GET", "/version", at_once([&](const Request&) {
         return json_answer({{"version", model.get()->weft_version}});
       })},
      {"GET", "/v1/models",
       at_once([&](const Request&) { return json_answer(models_answer(*model.get())); })},
      {"GET", "/load", at_once([&generations = parts.generations](const Request&) {
         return json_answer({{"server_load", generations.active()}});
       })},
      {"GET", "/server_info",
       at_once([&](const Request& request) { return server_info(*model.get(), request); })},
      {"GET", "/metrics", at_once([parts](const Request&) { return metrics(parts); })},
  };
}

std::vector<Row> control_rows(const std::shared_ptr<Control>& control) {
  const auto now = [&](Result<Response> (Control::*answer)(const Request&)) {
    return at_once(
        [control, answer](const Request& request) { return (control.get()->*answer)(request); });
  };
  const auto then = [&](void (Control::*act)(const Request&, Reply)) {
    return later([control, act](const Request& request, Reply reply) {
      (control.get()->*act)(request, std::move(reply));
    });
  };
  return {
      {"POST", "/pause", then(&Control::pause)},
      {"POST", "/resume", now(&Control::resume)},
      {"GET", "/is_paused", now(&Control::is_paused)},
      {"POST", "/abort_requests", now(&Control::abort_requests)},
      {"POST", "/init_weight_transfer_engine", now(&Control::init)},
      {"POST", "/shutdown_weight_transfer_engine", now(&Control::shutdown)},
      {"POST", "/start_weight_update", then(&Control::start_update)},
      {"POST", "/start_draft_weight_update", now(&Control::start_draft_update)},
      {"POST", "/update_weights", then(&Control::update)},
      {"POST", "/finish_weight_update", then(&Control::finish_update)},
      {"POST", "/update_weight_version", now(&Control::set_version)},
      {"GET", "/weight_info", now(&Control::weight_info)},
      {"POST", "/weight_checker", then(&Control::check_weights)},
      {"GET", "/get_world_size", now(&Control::world_size)},
      {"POST", "/reset_prefix_cache", now(&Control::reset_prefix_cache)},
      {"POST", "/reset_mm_cache", now(&Control::reset_other_cache)},
      {"POST", "/reset_encoder_cache", now(&Control::reset_other_cache)},
      {"POST", "/sleep", then(&Control::sleep)},
      {"POST", "/wake_up", now(&Control::wake_up)},
      {"GET", "/is_sleeping", now(&Control::is_sleeping)},
      {"POST", "/collective_rpc", now(&Control::collective_rpc)},
  };
}

}  // namespace

std::vector<http::Route> serving_routes(const ServingParts& parts) {
  std::vector<http::Route> routes;
  const auto add = [&](std::vector<Row> rows, bool is_control) {
    for (Row& row : rows) {
      const http::Access access = access_of(row, is_control);
      routes.push_back({row.method, row.path, guarded(std::move(row.handler)), nullptr,
                        row.body_limit_bytes, access});
    }
  };
  add(generation_rows(parts), false);
  add(information_rows(parts), false);
  add(control_rows(std::make_shared<Control>(parts)), true);
  return routes;
}

}  // namespace weft
