#pragma once
// Updates that name a version and the server that has it: pulled one after the other, on a thread
// of their own, `weft-pulls`.

#include <memory>
#include <string>
#include <utility>

#include "weft/base/guarded.h"
#include "weft/base/job_thread.h"
#include "weft/base/result.h"
#include "weft/http/client.h"
#include "weft/serving/control_request.h"
#include "weft/transfer/receiver.h"

namespace weft {

// Thread-safe.
class SourcePulls {
 public:
  // `options` are of the sources. `receiver` must outlive this.
  SourcePulls(Receiver& receiver, http::ClientOptions options)
      : receiver_(receiver),
        options_(std::move(options)),
        thread_("weft-pulls", JobThread::Rest::kRun) {}
  ~SourcePulls() { blocking_stop(); }

  // Stages the version for the update of this owner. A pull that fails closes the update. `done` is
  // called once, on the thread.
  void pull(const std::string& owner, const VersionAt& version, Receiver::Done done);
  // Ends the pull under way and all that wait, with kCancelled. Blocks.
  void blocking_stop();

 private:
  struct State {
    std::shared_ptr<http::Client> source;  // of the pull under way
    bool stopped = false;
  };

  Result<void> blocking_stage(const std::string& owner, const VersionAt& version);

  Receiver& receiver_;
  const http::ClientOptions options_;
  Guarded<State> state_;
  JobThread thread_;  // last: its jobs use the others
};

}  // namespace weft
