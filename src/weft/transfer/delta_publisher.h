#pragma once
// DeltaPublisher: pushes one version after the other to the same servers. It keeps the tensors of
// the last one, so that the next goes as what changed since, and whoever makes versions need not.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/client.h"
#include "weft/tensor/tensor.h"
#include "weft/transfer/publisher.h"
#include "weft/transfer/tensor_source.h"

namespace weft {

// One thread.
class DeltaPublisher {
 public:
  // The clients must outlive this. What is kept takes the memory of the tensors, as far as
  // `max_kept_bytes` reach: those that do not fit any more go in full each time. 0: as if there
  // were no deltas.
  explicit DeltaPublisher(std::vector<http::Client*> servers,
                          std::uint64_t max_kept_bytes = std::numeric_limits<std::uint64_t>::max());

  // Hashes the tensors (canonical coordinates; read until this returns), pushes them to all servers
  // side by side and, where a server still has the last version, as what changed since. Then keeps
  // them: of a tensor that was kept before, the blocks that differ are copied. Of `options`, which
  // hold for each server, `digests`, `base`, `base_source` and `announce` are set here; progress is
  // called from several threads. Blocks. Returns the result of each server, in order; a server
  // whose push failed gets the next version in full. So does one that is left out now (its place in
  // `left_out` is true): its result is kCancelled.
  std::vector<Result<PushReport>> blocking_publish(std::span<const TensorView> tensors,
                                                   PushOptions options,
                                                   const std::vector<bool>& left_out = {});

  std::uint64_t kept_bytes() const;

 private:
  struct Kept {
    TensorSpec spec;
    std::vector<std::byte> bytes;
    std::vector<Digest> blocks;
  };
  struct Server {
    http::Client* client;
    std::string base{};  // the id there of what is kept; "" where it is not there
  };

  std::vector<Result<PushReport>> blocking_push_to_all(const TensorSource& source,
                                                       const PushOptions& options,
                                                       const std::vector<bool>& left_out);
  void keep(std::span<const TensorView> tensors, const VersionDigests& digests);

  std::vector<Server> servers_;
  const std::uint64_t max_kept_bytes_;
  std::vector<Kept> kept_;
};

}  // namespace weft
