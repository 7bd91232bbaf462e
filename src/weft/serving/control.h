#pragma once
// The control plane: vLLM's routes for pausing, updating and asking after the weights, carried out
// on the engine and the weight receiver. Thread-safe; no call blocks.

#include <functional>
#include <set>
#include <string>

#include "weft/base/guarded.h"
#include "weft/base/result.h"
#include "weft/http/message.h"
#include "weft/serving/control_request.h"
#include "weft/serving/routes.h"

namespace weft {

// Called once, from any thread.
using Reply = std::function<void(Result<http::Response>)>;

class Control {
 public:
  explicit Control(const ServingParts& parts) : parts_(parts) {}

  void pause(const http::Request& request, Reply reply);
  Result<http::Response> resume(const http::Request& request);
  Result<http::Response> is_paused(const http::Request& request);
  Result<http::Response> abort_requests(const http::Request& request);

  Result<http::Response> init(const http::Request& request);
  Result<http::Response> shutdown(const http::Request& request);
  void start_update(const http::Request& request, Reply reply);
  Result<http::Response> start_draft_update(const http::Request& request);
  void update(const http::Request& request, Reply reply);
  void finish_update(const http::Request& request, Reply reply);
  Result<http::Response> set_version(const http::Request& request);
  Result<http::Response> weight_info(const http::Request& request);
  void check_weights(const http::Request& request, Reply reply);

  Result<http::Response> world_size(const http::Request& request);
  Result<http::Response> reset_prefix_cache(const http::Request& request);
  Result<http::Response> reset_other_cache(const http::Request& request);
  // Pauses; memory is not given back: the weights are where they serve from.
  void sleep(const http::Request& request, Reply reply);
  Result<http::Response> wake_up(const http::Request& request);
  Result<http::Response> is_sleeping(const http::Request& request);
  Result<http::Response> collective_rpc(const http::Request& request);

 private:
  void pause_engine(PauseMode mode, bool clear_cache, Reply reply, http::Response answer);
  Result<std::optional<std::string>> allowed_path(const std::optional<std::string>& path) const;
  void refuse_update(const std::string& owner, const Error& error, const Reply& reply);
  Receiver::Done updated(Reply reply) const;
  void update_from_source(const std::string& owner, VersionAt version, Reply reply);
  void update_whole(const std::string& owner, std::string path, Reply reply);

  const ServingParts parts_;
  Guarded<std::set<std::string>>
      asleep_;  // vLLM's tags; when the last one wakes, generation goes on
};

}  // namespace weft
