#include "weft/serving/control.h"

#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/serving/api_error.h"
#include "weft/serving/control_request.h"
#include "weft/transfer/upload_routes.h"

namespace weft {
namespace json = boost::json;
namespace {

using http::Request;
using http::Response;

Response json_answer(const json::value& value) {
  return http::json_response(json::serialize(value));
}
Response message_answer(std::string_view text) {
  return json_answer({{"message", text}});
}
Response status_answer(std::string_view text) {
  return json_answer({{"status", text}});
}

// 501, which no code of ours stands for.
Response not_implemented(std::string_view why) {
  const json::object error = {
      {"message", why}, {"type", "NotImplementedError"}, {"param", nullptr}, {"code", 501}};
  return http::json_response(json::serialize(json::object{{"error", error}}), 501);
}

// What a call of the receiver without a value answers.
Receiver::Done answering(Reply reply, Response response) {
  return [reply = std::move(reply), response = std::move(response)](Result<void> result) {
    if (!result) return reply(std::move(result).error());
    reply(response);
  };
}

json::object compare(const std::map<std::string, std::string>& baseline,
                     const std::vector<std::pair<std::string, std::string>>& sums) {
  std::map<std::string, std::string> found(sums.begin(), sums.end());
  json::array mismatches;
  for (const auto& [name, sum] : found) {
    const auto at = baseline.find(name);
    if (at == baseline.end() || at->second != sum) mismatches.emplace_back(name);
  }
  for (const auto& [name, sum] : baseline) {
    if (!found.contains(name)) mismatches.emplace_back(name);
  }
  const bool match = mismatches.empty();
  return {{"match", match}, {"mismatches", std::move(mismatches)}};
}

}  // namespace

void Control::pause_engine(PauseMode mode, bool clear_cache, Reply reply, Response answer) {
  // Behind the outputs that the pause ended, so that these are sent before it is answered.
  parts_.engine.pause(
      mode, clear_cache,
      [&render = parts_.render, reply = std::move(reply), answer = std::move(answer)] {
        render.post([reply, answer] { reply(answer); });
      });
}

void Control::pause(const Request& request, Reply reply) {
  const auto wanted = parse_pause(request);
  if (!wanted) return reply(wanted.error());
  pause_engine(wanted->mode, wanted->clear_cache, std::move(reply), status_answer("paused"));
}

Result<Response> Control::resume(const Request&) {
  parts_.engine.resume();
  return status_answer("resumed");
}

Result<Response> Control::is_paused(const Request&) {
  return json_answer({{"is_paused", parts_.engine.is_paused()}});
}

Result<Response> Control::abort_requests(const Request& request) {
  WEFT_TRY(const auto ids, parse_abort(request));
  parts_.generations.abort(ids);
  return json_answer({{"status", "aborted"}, {"aborted", ids.size()}});
}

Result<Response> Control::init(const Request& request) {
  WEFT_TRY_VOID(parse_init(request));
  return message_answer("Weight transfer initialized");
}

Result<Response> Control::shutdown(const Request&) {
  return message_answer("Weight transfer shut down");
}

void Control::start_update(const Request& request, Reply reply) {
  const auto owner = owner_of(request);
  if (!owner) return reply(owner.error());
  parts_.receiver.start_update(
      *owner, answering(std::move(reply), message_answer("Weight update started")));
}

Result<Response> Control::start_draft_update(const Request&) {
  return Error(ErrorCode::kInvalidArgument,
               "Draft model weight update requested, but no draft model is configured.");
}

// The path that may be read; relative ones start at the allowed folder. What a link points to
// counts.
Result<std::optional<std::string>> Control::allowed_path(
    const std::optional<std::string>& path) const {
  if (!path) return std::optional<std::string>();
  if (!parts_.allow_path) {
    return Error(ErrorCode::kForbidden,
                 "reading weights from a path is off: start with --allow-path DIR",
                 "body.update_info.path");
  }
  if (path->find('\0') != std::string::npos) {
    return Error(ErrorCode::kInvalidArgument, "a path cannot have a NUL", "body.update_info.path");
  }
  std::error_code error;
  const auto folder = std::filesystem::canonical(*parts_.allow_path, error);
  // Weakly: what lies outside is refused alike whether it is there or not.
  const auto file = error ? folder : std::filesystem::weakly_canonical(folder / *path, error);
  if (error) return Error(ErrorCode::kNotFound, fmt::format("{}: {}", *path, error.message()));
  if (std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first != folder.end()) {
    return Error(ErrorCode::kForbidden, fmt::format("{}: outside of --allow-path", *path));
  }
  return std::optional(file.string());
}

// Closes the update: a finish after it would name weights that never came.
void Control::refuse_update(const std::string& owner, const Error& error, const Reply& reply) {
  parts_.receiver.refuse_update(owner, error);
  reply(error);
}

Receiver::Done Control::updated(Reply reply) const {
  return [&receiver = parts_.receiver, reply = std::move(reply)](Result<void> result) {
    if (!result) return reply(std::move(result).error());
    json::object answer = {{"message", "Weights updated"}};
    // Nothing was pushed, where vLLM's words alone sound as if it was.
    if (receiver.upload_host()->status().state == UpdateState::kOpen) answer["tensors"] = 0;
    if (const auto stall = receiver.predicted_stall_us()) answer["predicted_stall_us"] = *stall;
    reply(json_answer(answer));
  };
}

void Control::update(const Request& request, Reply reply) {
  const auto owner = owner_of(request);
  if (!owner) return reply(owner.error());
  auto wanted = parse_update(request);
  if (!wanted) return refuse_update(*owner, wanted.error(), reply);
  if (wanted->pull) {
    return update_from_source(*owner, *std::move(wanted->pull), std::move(reply));
  }
  auto path = allowed_path(wanted->path);
  if (!path) return refuse_update(*owner, path.error(), reply);
  if (wanted->whole) return update_whole(*owner, path->value(), std::move(reply));
  parts_.receiver.update(*owner, *std::move(path), updated(std::move(reply)));
}

void Control::update_from_source(const std::string& owner, VersionAt version, Reply reply) {
  if (!is_allowed_source(version.source, parts_.allow_sources)) {
    const Error error(
        ErrorCode::kForbidden,
        fmt::format("pulling from {} is off: start with --allow-source PREFIX", version.source),
        "body.update_info.source");
    return refuse_update(owner, error, reply);
  }
  const auto started = parts_.receiver.check_started(owner);
  if (!started) return reply(started.error());
  parts_.pull(owner, std::move(version), updated(std::move(reply)));
}

void Control::update_whole(const std::string& owner, std::string path, Reply reply) {
  Receiver& receiver = parts_.receiver;
  const auto finish = [&receiver, owner, reply](Result<void> updated) {
    if (!updated) return reply(std::move(updated).error());
    receiver.finish_update(owner, std::nullopt, answering(reply, status_answer("ok")));
  };
  receiver.start_update(
      owner, [&receiver, owner, path = std::move(path), reply, finish](Result<void> started) {
        if (!started) return reply(std::move(started).error());
        receiver.update(owner, path, finish);
      });
}

void Control::finish_update(const Request& request, Reply reply) {
  const auto owner = owner_of(request);
  if (!owner) return reply(owner.error());
  auto wanted = parse_finish(request);
  if (!wanted) return reply(std::move(wanted).error());
  parts_.receiver.finish_update(
      *owner, std::move(wanted->label), wanted->on_update,
      answering(std::move(reply), message_answer("Weight update finished")));
}

Result<Response> Control::set_version(const Request& request) {
  WEFT_TRY(const std::string label, parse_new_version(request));
  WEFT_TRY_VOID(parts_.receiver.set_label(label));
  return json_answer({{"success", true}, {"new_version", label}});
}

Result<Response> Control::weight_info(const Request&) {
  const VersionName version = parts_.target.current();
  return json_answer({{"weight_version", version.label},
                      {"id", version.id},
                      {"converted", version.converted},
                      {"instance_id", parts_.instance_id}});
}

void Control::check_weights(const Request& request, Reply reply) {
  auto wanted = parse_checker(request);
  if (!wanted) return reply(std::move(wanted).error());
  using Action = CheckerRequest::Action;
  if (wanted->action == Action::kReset) {
    return reply(
        not_implemented("reset would overwrite the weights that serve; push others instead"));
  }
  parts_.receiver.checksums([wanted = *std::move(wanted), reply = std::move(reply)](auto sums) {
    if (wanted.action == Action::kCompare)
      return reply(json_answer(compare(wanted.baseline, sums)));
    json::object checksums;
    for (const auto& [name, sum] : sums) checksums[name] = sum;
    reply(json_answer({{"checksums", std::move(checksums)}}));
  });
}

Result<Response> Control::world_size(const Request& request) {
  WEFT_TRY_VOID(parse_query_flag(request, "include_dp", true));
  return json_answer({{"world_size", 1}});
}

// Succeeds while sequences run, too: nobody finds what they have computed until now.
Result<Response> Control::reset_prefix_cache(const Request& request) {
  WEFT_TRY(const bool recompute_running,
           parse_query_flag(request, "reset_running_requests", false));
  parts_.engine.reset_prefix_cache(recompute_running);
  return json_answer({{"success", true}});
}
Result<Response> Control::reset_other_cache(const Request&) {
  return status_answer("ok");
}

void Control::sleep(const Request& request, Reply reply) {
  const auto wanted = parse_sleep(request);
  if (!wanted) return reply(wanted.error());
  asleep_.with([&](auto& asleep) {
    asleep.insert("scheduling");
    if (wanted->level > 0) asleep.insert({"weights", "kv_cache"});
  });
  pause_engine(wanted->mode, wanted->level > 0, std::move(reply),
               json_answer({{"status", "sleeping"}, {"level", wanted->level}}));
}

Result<Response> Control::wake_up(const Request& request) {
  json::array tags;
  for (const auto& [name, value] : request.query) {
    if (name == "tags") tags.emplace_back(value);
  }
  const bool awake = asleep_.with([&](auto& asleep) {
    for (const json::value& tag : tags) asleep.erase(std::string(tag.get_string()));
    // Scheduling wakes by itself once weights and KV cache have.
    if (tags.empty() || !(asleep.contains("weights") || asleep.contains("kv_cache")))
      asleep.clear();
    return asleep.empty();
  });
  if (awake) parts_.engine.resume();
  return json_answer({{"status", awake ? "awake" : "sleeping"},
                      {"tags_woken", tags.empty() ? json::value(nullptr) : json::value(tags)}});
}

// As in vLLM, also true when only paused.
Result<Response> Control::is_sleeping(const Request&) {
  return json_answer({{"is_sleeping", parts_.engine.is_paused()}});
}

Result<Response> Control::collective_rpc(const Request& request) {
  WEFT_TRY(const std::string method, parse_collective_rpc(request));
  return Error(
      ErrorCode::kInternal,
      fmt::format("Call to collective_rpc method failed: there is no method '{}' here", method));
}

}  // namespace weft
