#pragma once
// vLLM's control requests, parsed and checked. Pure functions; nothing here acts. All errors are
// kInvalidArgument with vLLM's param; a request that is refused has changed nothing.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/engine/engine.h"
#include "weft/http/message.h"
#include "weft/tensor/on_update.h"

namespace weft {

struct PauseRequest {
  PauseMode mode = PauseMode::kAbort;
  bool clear_cache = true;
};
// ?mode=abort|wait|keep&clear_cache=BOOL&wait_for_inflight_requests=BOOL (the old way to say wait).
Result<PauseRequest> parse_pause(const http::Request& request);

struct SleepRequest {
  std::int64_t level = 1;  // 0 to 2
  PauseMode mode = PauseMode::kAbort;
};
Result<SleepRequest> parse_sleep(const http::Request& request);

// ?NAME=BOOL.
Result<bool> parse_query_flag(const http::Request& request, std::string_view name, bool otherwise);

// {"init_info": {}}. Nothing in it is needed; what belongs to another transfer back end is refused
// with a word on what is accepted.
Result<void> parse_init(const http::Request& request);

// A version, by id or label, and the server that has it.
struct VersionAt {
  std::string version;
  std::string source;  // "http://host:port"
};
struct UpdateRequest {
  std::optional<std::string> path;  // nothing in either: what was pushed
  std::optional<VersionAt> pull;
  bool whole = false;  // prime-rl's {"weight_dir"}: start, update and finish in one
};
// {"update_info": {} or {"path": text} or {"version": text, "source": text} or a list with one of
// these} or {"weight_dir": text}.
Result<UpdateRequest> parse_update(const http::Request& request);

struct FinishRequest {
  std::optional<std::string> label;
  std::optional<OnUpdate> on_update;
};
// {"weight_version": text or null, "on_update": text or null}; no body, null and {} are nothing.
Result<FinishRequest> parse_finish(const http::Request& request);
// {"new_version": text}.
Result<std::string> parse_new_version(const http::Request& request);

struct CheckerRequest {
  enum class Action { kChecksum, kReset, kCompare } action = Action::kChecksum;
  std::map<std::string, std::string> baseline;  // of kCompare
};
Result<CheckerRequest> parse_checker(const http::Request& request);

// {"request_ids": [text, ...]}; empty means all.
Result<std::vector<std::string>> parse_abort(const http::Request& request);
// The method of {"method": text, ...}.
Result<std::string> parse_collective_rpc(const http::Request& request);

// Whether `source` is one of `prefixes`, or goes on with a "/" after one.
bool is_allowed_source(std::string_view source, const std::vector<std::string>& prefixes);

}  // namespace weft
