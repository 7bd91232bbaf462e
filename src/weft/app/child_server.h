#pragma once
// ChildServer: a `weft serve` process that lives as long as the object, and never longer than its
// parent.

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "weft/base/result.h"

namespace weft {

struct ChildServerOptions {
  std::filesystem::path program;       // the `weft` to run
  std::vector<std::string> arguments;  // after it: "serve", MODEL_DIR, ...; --port 0 among them
  std::string admin_key;               // that it gets, whatever WEFT_ADMIN_KEY is here
  std::filesystem::path log;           // its standard output and error
  std::chrono::milliseconds timeout{60'000};  // until it answers
};

// One thread, the one that creates it: the child is killed when that thread ends.
class ChildServer {
 public:
  // Returns when the server answers GET /health. Blocks. Errors: kInternal when it could not be
  // started or ended, with the last line of its log; kDeadline; kCancelled when `stop` became true.
  static Result<std::unique_ptr<ChildServer>> blocking_start(const ChildServerOptions& options,
                                                             const std::atomic<bool>& stop);
  ChildServer(const ChildServer&) = delete;
  ChildServer& operator=(const ChildServer&) = delete;
  // Asks it to end, waits, then kills it. Blocks.
  ~ChildServer();

  const std::string& url() const { return url_; }
  // How it ended, if it did: "the server ended with status 1: <last line of its log>".
  std::optional<std::string> try_ended();

 private:
  ChildServer(pid_t pid, int pid_fd, std::filesystem::path log)
      : pid_(pid), pid_fd_(pid_fd), log_(std::move(log)) {}
  bool blocking_answers();
  // Waits until it has ended, at most so long.
  void blocking_wait(std::chrono::milliseconds limit) const;

  pid_t pid_;  // 0 once it has been waited for
  int pid_fd_;
  std::filesystem::path log_;
  std::string url_;  // "" until its log names it
  std::string ending_;
};

}  // namespace weft
