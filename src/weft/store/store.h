#pragma once
// A store: versions on disk, pushed to it and pulled from it over HTTP. docs/store.md has the
// folder's layout, the order of the fsyncs and why no crash loses a version.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/protocol/catalog.h"
#include "weft/store/disk_hook.h"
#include "weft/transfer/upload_host.h"
#include "weft/transfer/version_source.h"

namespace weft {

struct StoreOptions {
  std::chrono::milliseconds lease{300'000};  // an upload that hears nothing for so long is closed
  // Blocks of an upload that nobody goes on with stay on disk so long.
  std::chrono::milliseconds keep_staged = std::chrono::hours(24);
  std::size_t max_uploads = 256;  // open at a time
  std::uint64_t max_version_bytes = 4ull << 40;
  Retention retention{};
  // After a commit that names a base, or a parent, the delta from it is made and offered.
  bool deltas = true;
  DiskHook disk_hook{};  // for tests
};

struct StoreStats {
  std::uint64_t versions = 0, objects = 0, object_bytes = 0;
  std::uint64_t uploads_open = 0, blocks_in = 0, bytes_out = 0;
  std::map<std::string, std::uint64_t> bytes_in;  // by encoding, of payloads of verified blocks
  std::map<std::string, std::uint64_t> refused;   // by the error's name
  std::uint64_t deltas = 0, delta_bytes = 0, deltas_made = 0;
  std::map<std::string, std::uint64_t> deltas_given_up;  // by the error's name
};

// What retention and garbage collection did.
struct CollectReport {
  std::vector<std::string> versions;  // let go
  std::uint64_t objects = 0, bytes = 0;
};

// One process has a folder at a time. Thread-safe.
class Store {
 public:
  // Makes the folder where there is none. Errors: kConflict, naming the process, when another has
  // it; kInvalidArgument for a folder of something else; those of the disk. Blocks.
  static Result<std::unique_ptr<Store>> blocking_open(const std::filesystem::path& folder,
                                                      StoreOptions options = {});
  virtual ~Store() = default;

  // Both must be let go before the store is.
  virtual std::shared_ptr<UploadHost> uploads() = 0;
  virtual VersionSource& versions() = 0;

  // Lets go what retention does not keep, and deletes what nobody needs; also closes uploads whose
  // lease ran out. Runs by itself after each commit; call it now and then for what only time
  // changes. Blocks.
  virtual Result<CollectReport> blocking_collect() = 0;
  // Until the deltas of all commits so far are on offer, or given up. Blocks.
  virtual void blocking_finish_deltas() = 0;
  virtual StoreStats stats() = 0;
};

struct StoreFault {
  std::string path, what;
  std::vector<std::string> versions;  // ids that it harms
  bool set_aside = false;
};
struct FsckReport {
  std::uint64_t versions = 0, objects = 0, bytes = 0;  // that were read
  std::uint64_t deltas = 0;                            // that were read
  std::uint64_t unreferenced = 0;  // objects that no version needs: `gc` deletes them
  std::vector<StoreFault> faults;
};
// Reads and hashes everything that versions need. `repair`: moves what is bad to DIR/aside, so that
// a push of the same version brings it again. Errors: as Store::blocking_open. Blocks.
Result<FsckReport> blocking_fsck(const std::filesystem::path& folder, bool repair);

}  // namespace weft
