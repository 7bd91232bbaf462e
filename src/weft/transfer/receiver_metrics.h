#pragma once
// What a receiver has done since it began, for /metrics. A value.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace weft {

// What the time of an update goes into. Each is measured by itself; they overlap.
enum class UpdateStage : std::uint8_t {
  kHash,    // hashing what is served: at the start, and after a patch
  kSend,    // from the opening of an upload to its last block
  kVerify,  // hashing and decoding what came
  kStage,   // reading a path, copying what the base has, sealing
  kCommit,  // from the call to the answer
};
inline constexpr std::array<std::string_view, 5> kUpdateStageNames = {"hash", "send", "verify",
                                                                      "stage", "commit"};

struct ReceiverMetrics {
  struct Time {
    double seconds = 0;
    std::uint64_t count = 0;
  };

  void add(UpdateStage stage, double seconds) {
    Time& time = stages.at(static_cast<std::size_t>(stage));
    time.seconds += seconds;
    ++time.count;
  }

  // Updates by how they ended. A rollback is not among the committed.
  std::uint64_t committed = 0, failed = 0, rolled_back = 0;
  std::uint64_t corrupt = 0;        // patched in place, found wrong, taken back
  std::uint64_t residents = 1;      // versions that are whole in memory: served or rolled back to
  std::int64_t last_commit_ms = 0;  // Unix time; 0: none yet
  std::array<Time, kUpdateStageNames.size()> stages{};
  std::map<std::string, std::uint64_t> bytes;     // of payloads that came, by encoding
  std::map<std::string, std::uint64_t> refusals;  // by error_traits(code).name
};

}  // namespace weft
