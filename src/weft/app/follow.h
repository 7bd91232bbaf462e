#pragma once
// `weft serve --follow`: keeps a receiver at a head of a source.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "weft/base/guarded.h"
#include "weft/base/result.h"
#include "weft/http/client.h"
#include "weft/transfer/follower.h"
#include "weft/transfer/receiver.h"

namespace weft {

// "http://host:port" or "http://host:port#head"; without a head it is `main`.
struct FollowedHead {
  http::Url source;
  std::string head = "main";

  // Errors: kInvalidArgument.
  static Result<FollowedHead> parse(std::string_view text);
};

// Pulls what the head points to and commits it, whenever it moves. Thread-safe.
class Following {
 public:
  // `served`: what of the source is served already; "" is nothing. `receiver` must outlive this.
  Following(std::unique_ptr<http::Client> source, const std::string& head, std::string served,
            Receiver& receiver);

  // Ends the pull under way and takes nothing more. Blocks.
  void blocking_stop() { follower_.blocking_stop(); }

  // 1 while the head points to another version than came from it last.
  std::uint64_t lag() const { return lag_.load(std::memory_order_relaxed); }

  // Versions that came, by their way: "deltas", as what changed since the one that served; "full";
  // "fallback": in full, since something was wrong with the deltas.
  std::map<std::string, std::uint64_t> pulls() const {
    return pulls_.with([](const auto& pulls) { return pulls; });
  }

 private:
  Result<void> blocking_take(const HeadPlace& place);

  http::Client& source_;  // the follower's
  const std::string owner_;
  Receiver& receiver_;
  std::atomic<std::uint64_t> lag_ = 0;
  Guarded<std::map<std::string, std::uint64_t>> pulls_{
      {{"deltas", 0}, {"full", 0}, {"fallback", 0}}};
  HeadFollower follower_;  // last: it calls what uses the others
};

}  // namespace weft
