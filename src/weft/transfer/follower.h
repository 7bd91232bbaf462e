#pragma once
// HeadFollower: watches a head of a source by long-polling, and says where it is.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "weft/base/result.h"
#include "weft/http/client.h"

namespace weft {

struct HeadPlace {
  std::string id;
  std::string label;  // "" where it has none
};

// Where a head of `source` is now. Blocks. Errors: the source's own, with its words; kCorrupt where
// it names no id.
Result<HeadPlace> blocking_head(http::Client& source, const std::string& head);

// Thread-safe.
class HeadFollower {
 public:
  struct Options {
    std::string head = "main";
    std::string known_id{};  // where the head was last seen: not said again
    // Of one poll, 300 at most. Shorter than the client's idle_timeout.
    std::chrono::seconds wait{30};
  };
  // Called on the follower's thread (`weft-follow`), one call at a time, each time the head has
  // moved; it may block. Where it was several times in the meantime, only the last place is said.
  // After an error, which is logged, it is called again in a while with where the head is then.
  using Moved = std::function<Result<void>(const HeadPlace& place)>;

  // Begins to watch. A source that does not answer, or has no such head yet, is asked again, after
  // 0.1 s at first and 5 s in the end.
  HeadFollower(std::unique_ptr<http::Client> source, Options options, Moved moved);
  ~HeadFollower() { blocking_stop(); }

  // Ends the poll, and waits for a call of `moved` that runs. Not from `moved`. Blocks.
  void blocking_stop();

 private:
  void run();
  // Where the head is now, once it is not where it was; nothing when the time is up.
  Result<std::optional<HeadPlace>> blocking_poll();
  bool blocking_pause(std::chrono::milliseconds time);

  const std::unique_ptr<http::Client> source_;
  const Options options_;
  const Moved moved_;
  std::string known_id_;  // of the thread

  std::mutex mutex_;  // of stopped_
  std::condition_variable changed_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace weft
