#pragma once
// PullMachine: the receiving side of one pull of a version. It says what to fetch next, and holds
// the answers to the version's id: the manifest's digest is the id, the block list merges into the
// manifest's digests, each block has the digest that the list says. It decides what is fetched
// again, from where, and when to give up. No sockets, clocks, threads or bytes: effects are the
// caller's. One thread (callers with several connections lock).
//
//   kManifest -> kBlocks -> kFetch -> kDone
//
// docs/protocol.md, "Pulling", has the rules.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/base/result.h"
#include "weft/digest/digest.h"
#include "weft/format/manifest.h"
#include "weft/protocol/block_frame.h"
#include "weft/protocol/push_machine.h"

namespace weft {

// An entry of a manifest, tensors first, then files.
struct ManifestEntry {
  std::string_view name;
  std::uint64_t size_bytes = 0;
  Digest digest;
};
// Views into `manifest`. Errors: kCorrupt for sizes that overflow 63 bits together.
Result<std::vector<ManifestEntry>> manifest_entries(const Manifest& manifest);

class PullMachine {
 public:
  using Milliseconds = std::chrono::milliseconds;

  struct Options {
    unsigned retries = 5;            // failures in a row without a newly verified block
    Milliseconds patience{600'000};  // all the waiting that sources ask for with Retry-After
    Milliseconds first_wait{100};    // before a retry; doubled with each that brings nothing
    std::size_t sources = 1;         // that are said to have the version, the best one first
    unsigned corrupt_limit = 3;      // how often one block may come wrong
  };
  enum class Step {
    kManifest,  // GET the manifest from source(); then manifest()
    kBlocks,    // GET the block list from source(); then blocks()
    kFetch,     // hold() what is there; take() fetches, any number at a time; fetched() for each
    kWait,      // for wait(); then waited()
    kDone,
    kFailed,  // see error()
  };

  // Part of a block that lies in one pack, or all of it.
  struct Piece {
    BlockPlace place;
    std::uint64_t offset_bytes = 0;  // in the block
    std::uint64_t size_bytes = 0;
    bool is_whole = false;  // the piece is the block
  };
  // One GET: adjacent pieces of one pack, or one block by the digest of its entry.
  struct Fetch {
    std::uint64_t number = 0;  // tells it from others
    std::size_t source = 0;
    bool by_digest = false;         // GET blobs/{digest of the entry}, else a pack
    std::uint64_t pack = 0;         // its number
    std::uint64_t begin_bytes = 0;  // of the range, in the pack or the entry
    std::uint64_t size_bytes = 0;   // of all pieces
    bool is_all = false;            // the range is the whole resource: no Range needed
    std::vector<Piece> pieces;      // in the order of their bytes
  };

  PullMachine(std::string id, const Options& options);

  Step step() const { return step_; }
  std::size_t source() const { return source_; }

  // What came of the step. Requires: step() is the one that the call belongs to.
  void manifest(const Result<std::string>& json, std::optional<Milliseconds> retry_after = {});
  void blocks(const Result<std::string>& list, std::optional<Milliseconds> retry_after = {});
  void waited();
  // The caller gives up: what it writes to has failed. Requires: nothing is being fetched.
  void give_up(const Error& error);

  // kFetch. The block is there already, and right. Requires: nothing was taken.
  void hold(const BlockPlace& place);
  // The next fetch; none when all are under way, done, or one failed.
  std::optional<Fetch> take();
  // All bytes of a piece are written. True when the block is complete: check it, then checked().
  bool arrived(const Piece& piece);
  // The digest of a complete block. False: it is not the right one, and will be fetched again.
  bool checked(const BlockPlace& place, const Digest& digest);
  // Entries that have become complete since the last call. One without a byte is never named.
  std::vector<std::size_t> take_complete() { return std::exchange(complete_, {}); }
  // What came of a fetch; an error of the answer or of the connection. Pieces that did not arrive
  // are open again. The step changes with the last one.
  void fetched(const Fetch& fetch, const Result<void>& answer,
               std::optional<Milliseconds> retry_after = {});

  // From kBlocks and kFetch on.
  const Manifest& content() const { return manifest_; }
  const std::vector<ManifestEntry>& entries() const { return entries_; }
  // The values of an entry's blocks, once kFetch was reached.
  std::span<const Digest> digests(std::size_t entry) const;

  const std::string& id() const { return id_; }
  Milliseconds wait() const { return wait_; }
  const Error& error() const { return *error_; }  // Requires: kFailed
  std::uint64_t total_bytes() const { return total_bytes_; }
  std::uint64_t verified_bytes() const { return verified_bytes_; }
  std::uint64_t held_bytes() const { return held_bytes_; }
  unsigned resumed() const { return resumed_; }
  unsigned corrupt() const { return corrupt_; }  // blocks that came wrong

 private:
  enum class State : std::uint8_t { kOpen, kTaken, kHere, kVerified };
  struct Part {
    Piece piece;
    std::uint64_t begin_bytes;  // in the data
    State state = State::kOpen;
    std::uint64_t taken_by = 0;  // the fetch

    void take(std::uint64_t fetch) {
      state = State::kTaken;
      taken_by = fetch;
    }
  };

  Result<void> take_list(std::string_view list);
  void cut_parts();
  std::size_t block_index(const BlockPlace& place) const;
  std::span<Part> parts_of(const BlockPlace& place);
  void verify(const BlockPlace& place);
  Fetch fetch_by_digest(const BlockPlace& place);
  Fetch fetch_from_pack(std::size_t first_part);
  void count_wrong(const BlockPlace& place, ErrorCode code, std::string_view why);
  std::size_t alive_source(std::size_t from) const;
  void failed(std::size_t source, const Error& error, std::optional<Milliseconds> retry_after);
  void end_round();
  void fail(const Error& error);

  const std::string id_;
  const Options options_;
  Step step_ = Step::kManifest;
  Step then_ = Step::kManifest;  // after kWait
  Milliseconds wait_{0};
  std::size_t source_ = 0;
  std::vector<bool> gone_;  // [sources] that cannot help

  Manifest manifest_;
  std::vector<ManifestEntry> entries_;
  std::vector<std::size_t> first_block_;  // [entries + 1] in digests_
  std::vector<Digest> digests_;           // [blocks]
  std::vector<unsigned> wrong_;           // [blocks] how often it came wrong
  std::vector<std::size_t> first_part_;   // [blocks + 1] in parts_
  std::vector<Part> parts_;               // in the order of their bytes
  std::vector<std::size_t> left_blocks_;  // [entries] that are not verified
  std::vector<std::size_t> complete_;     // entries, since take_complete()
  std::size_t next_ = 0;                  // no part before it is open

  std::uint64_t last_fetch_ = 0;
  unsigned under_way_ = 0;       // fetches
  std::optional<Error> failed_;  // in this round
  std::optional<Milliseconds> failed_retry_after_;
  unsigned tries_ = 0;
  Milliseconds waited_{0};
  std::uint64_t best_verified_bytes_ = 0;

  std::uint64_t total_bytes_ = 0;
  std::uint64_t verified_bytes_ = 0;
  std::uint64_t held_bytes_ = 0;
  unsigned resumed_ = 0;
  unsigned corrupt_ = 0;
  std::optional<Error> error_;
};

}  // namespace weft
