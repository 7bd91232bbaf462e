#pragma once
// DeltaWorker: makes the deltas of a store, one after the other, on a thread that lets all others
// go first. Thread-safe.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "weft/base/guarded.h"
#include "weft/base/job_thread.h"
#include "weft/store/internal/archive.h"

namespace weft::store {

struct DeltaWork {
  std::uint64_t made = 0;
  std::map<std::string, std::uint64_t> given_up;  // by the error's name
};

class DeltaWorker {
 public:
  explicit DeltaWorker(std::shared_ptr<Archive> archive) : archive_(std::move(archive)) {}
  ~DeltaWorker() { blocking_stop(); }

  // Expects the delta to `id` from `base`, if that is here. What is returned makes it some time
  // later, if both are here then and it is worth its bytes; must not outlive this. Without a base
  // it is empty.
  std::function<void()> expect(const std::string& id, const std::string& base);
  // Until all that was to be made is made. Blocks.
  void blocking_finish();
  // Gives up what it does. Blocks.
  void blocking_stop();

  DeltaWork work() const {
    return work_.with([](const DeltaWork& work) { return work; });
  }

 private:
  void blocking_try(const std::string& id, const std::string& base);
  Result<void> blocking_make(const std::string& id, const std::string& base);

  const std::shared_ptr<Archive> archive_;
  std::atomic<bool> stopped_ = false;
  bool is_nice_ = false;  // of the thread
  Guarded<DeltaWork> work_;
  JobThread thread_{"weft-delta", JobThread::Rest::kDrop};  // last: its jobs use all of this
};

}  // namespace weft::store
