#pragma once
// What the pushing side writes and reads as JSON: docs/protocol.md. Pure.

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "weft/http/message.h"
#include "weft/protocol/push_machine.h"
#include "weft/transfer/publisher.h"
#include "weft/transfer/tensor_source.h"

namespace weft::internal {

// An exchange's outcome, and Retry-After where the answer had one.
struct Answer {
  Result<http::Response> response;  // with a status under 300
  std::optional<std::chrono::milliseconds> retry_after;
};
// A status of 300 or more becomes the error that it stands for. 502, of a proxy whose server is
// gone, is kDisconnected.
Answer answer_of(Result<http::Response> response);

// The body of POST uploads. `digests`: null when they come with the blocks. `base`: as
// options.base, or "".
std::string skeleton_json(const TensorSource& source, const VersionDigests* digests,
                          const std::string& base, bool partial, bool replace);
// The body of POST commit; "" where nothing is to be said.
std::string commit_json(const PushOptions& options);

// Errors of what follows: that of the answer; kCorrupt naming what it lacks.
struct OpenAnswer {
  PushMachine::Opened opened;
  bool takes_zstd = false;
  bool takes_sparse = false;
  bool takes_delta = false;
  bool patch_mode = false;  // it takes no block that changes but as changes
};
Result<OpenAnswer> parse_opened(const Answer& answer);
Result<PushMachine::Counts> parse_counts(const Answer& answer);
struct CommitAnswer {
  std::string id;
  std::uint64_t stall_us = 0;  // also when there is none, as on a store
  bool converted = false;
};
Result<CommitAnswer> parse_committed(const Answer& answer);
Result<std::string> parse_sealed(const Answer& answer);
// Nothing when the server does not say; the calls that follow have the reason.
std::optional<PushMachine::Serving> parse_serving(const Answer& answer);

}  // namespace weft::internal
