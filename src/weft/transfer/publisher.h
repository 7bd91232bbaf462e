#pragma once
// The sending side: pushes the tensors of a version to a server and commits it there.

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "weft/base/result.h"
#include "weft/http/client.h"
#include "weft/tensor/tensor.h"

namespace weft {

struct PushOptions {
  std::string label{};    // of the new version; "" leaves the server's label as it is
  std::string session{};  // Weft-Session: the owner; "" draws one
  unsigned connections = 2;
  unsigned retries = 5;  // of a cut connection; each goes on from what is missing
  bool commit = true;    // false: stop when it is staged
  // Bytes of payload that the server has verified, out of all; called from the pushing thread.
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress{};
};

struct PushReport {
  std::string id;                   // of the committed version
  std::uint64_t total_bytes = 0;    // of the tensors
  std::uint64_t sent_bytes = 0;     // on the wire, bodies only
  std::uint64_t skipped_bytes = 0;  // the server had them
  unsigned resumed = 0;             // how often a cut connection was taken up again
  double hash_seconds = 0, send_seconds = 0, commit_seconds = 0, total_seconds = 0;
  double stall_us = 0;  // between the last step on the old set and the new one in place
};

// Pushes `tensors` (canonical coordinates; their memory is read until this returns) and, with
// options.commit, makes them what the server serves. Nothing changes there before that. Blocks.
// Errors: the server's own, with its words; kDisconnected when retries ran out. After an error the
// server's old version serves on.
Result<PushReport> blocking_push(http::Client& server, std::span<const TensorView> tensors,
                                 const PushOptions& options);

}  // namespace weft
