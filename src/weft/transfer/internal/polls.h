#pragma once
// Polls: requests that wait until something moves, or their time is up, or the client goes away.
// Thread-safe.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "weft/http/server.h"

namespace weft::internal {

class Polls {
 public:
  // Calls its argument, from any thread, each time something has moved; until the guard is dropped.
  using Subscribe = std::function<std::shared_ptr<void>(std::function<void()>)>;
  // What to answer now; status 304 while there is no news.
  using Look = std::function<http::Response()>;

  // `subscribe` and each `look` are called only while a client waits.
  Polls(Subscribe subscribe, std::size_t limit);
  ~Polls();
  Polls(const Polls&) = delete;
  Polls& operator=(const Polls&) = delete;

  // Answers `exchange` with the first news of `look`, or after `wait` with what it says then, or
  // at once with kOverloaded when too many wait.
  void wait(Look look, std::chrono::seconds wait, std::shared_ptr<http::Exchange> exchange);
  std::size_t waiting() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Poll;

  void subscribe();
  void leave(const std::shared_ptr<Poll>& poll);
  std::vector<std::shared_ptr<Poll>> blocking_next();
  void run();

  const Subscribe subscribe_;
  const std::size_t limit_;
  mutable std::mutex mutex_;  // of what follows, but for the thread
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Poll>> polls_;
  std::shared_ptr<void> subscription_;  // while someone waits
  bool moved_ = false;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace weft::internal
