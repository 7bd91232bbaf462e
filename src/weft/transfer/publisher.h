#pragma once
// The sending side: pushes a version to a server (an engine's receiver, or a store) and commits it
// there. docs/protocol.md, "Pushing".

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "weft/base/result.h"
#include "weft/codec/block_codec.h"
#include "weft/http/client.h"
#include "weft/tensor/tensor.h"
#include "weft/transfer/tensor_source.h"

namespace weft {

// Whether the digests go ahead of the blocks. With them, blocks that the server has are not sent,
// and a push that was killed goes on where it stopped; without them the bytes are read once.
enum class Announce { kAutomatic, kAlways, kNever };  // automatic: unless the source is costly

struct PushOptions {
  std::string label{};    // of the new version; "" leaves the server's label as it is
  std::string session{};  // Weft-Session: the owner; "" draws one
  unsigned connections = 2;
  unsigned retries = 5;  // in a row that bring nothing; each goes on from what is missing
  std::chrono::milliseconds first_wait{100};  // before a retry; doubled with each in a row
  bool commit = true;                         // false: stop when it is staged
  // Bytes of content that the server has verified, out of all; called from the pushing thread.
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress{};

  Announce announce = Announce::kAutomatic;
  // Of this very source, hashed before: they are announced, and nothing is hashed again.
  const VersionDigests* digests = nullptr;

  // Id of a version that the server has. What changed since goes as deltas (to a server that does
  // not know these, as sparse blocks), where that is shorter, if `base_source` has its tensors. A
  // server that does not have it is sent everything as it is; so is a block whose delta the server
  // refuses, because it broke or `base_source` is not what the server has.
  std::string base{};
  const TensorSource* base_source = nullptr;
  bool partial =
      false;          // tensors that the source lacks are the base's; then the base must be there
  bool zstd = false;  // compress blocks where that makes them shorter
  int zstd_level = 1;

  // Of the commit: docs/protocol.md. "" where nothing is to be said.
  std::string head{}, if_match{}, parent{}, origin{}, on_update{};

  // Several writers push one version side by side: on each the same shapes, options and session,
  // and the bytes of its share at least. The first one also sends what others leave, and commits;
  // the others are done when theirs is there (their report has no id). Take another session for
  // each version, since without digests blocks of the last one cannot be told from this one's.
  unsigned writer = 0, writers = 1;
};

struct PushReport {
  std::string id;                   // of the committed version
  std::uint64_t total_bytes = 0;    // of the entries
  std::uint64_t sent_bytes = 0;     // on the wire, bodies of blocks only
  std::uint64_t skipped_bytes = 0;  // the server had them
  unsigned resumed = 0;             // how often something was taken up again
  std::string base{};               // as in the options, if the server has it
  BytesByEncoding payload_bytes{};  // of the bodies that the server took; frames not counted
  std::uint64_t fell_back = 0;      // blocks that went in full because their delta was refused
  bool converted = false;           // the server keeps it in other dtypes
  double hash_seconds = 0, send_seconds = 0, commit_seconds = 0, total_seconds = 0;
  double stall_us = 0;  // between the last step on the old set and the new one in place
};

// Pushes all of `source` and, with options.commit, makes it what the server serves (or the head of
// a store). Nothing changes there before that. Memory: a few blocks for each connection. Blocks.
// Errors: the server's own, with its words; the source's; kDisconnected when retries ran out. After
// an error the server's old version serves on.
Result<PushReport> blocking_push(http::Client& server, const TensorSource& source,
                                 const PushOptions& options);

// The same for tensors in memory (canonical coordinates; read until this returns), without files.
Result<PushReport> blocking_push(http::Client& server, std::span<const TensorView> tensors,
                                 const PushOptions& options);

}  // namespace weft
