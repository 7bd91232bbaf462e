// blocking_fsck: everything that versions need is read and hashed.

#include <algorithm>
#include <map>
#include <set>
#include <system_error>
#include <vector>

#include <fmt/core.h>

#include "weft/base/file.h"
#include "weft/protocol/block_ledger.h"
#include "weft/store/internal/archive.h"
#include "weft/store/store.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// What a digest stands for: the bytes of this block of an entry of this size. The digest binds the
// place in the entry, so any version that has it tells the same.
struct Wanted {
  std::uint64_t entry_bytes = 0, block = 0;
  std::vector<std::string> versions;
};

class Fsck {
 public:
  Fsck(store::Layout layout, bool repair)
      : layout_(std::move(layout)), disk_(nullptr), repair_(repair) {}

  Result<FsckReport> blocking_run() {
    WEFT_TRY(const std::vector<std::string> ids, version_ids());
    for (const std::string& id : ids) check_version(id);
    for (const auto& [digest, wanted] : wanted_) check_object(digest, wanted);
    count_unreferenced();
    check_deltas();
    return std::move(report_);
  }

 private:
  Result<std::vector<std::string>> version_ids() {
    const auto text = blocking_read_file(layout_.catalog(), 1ull << 30);
    if (!text) return text.error();
    std::vector<std::string> ids;
    const auto catalog = store::parse_catalog(*text);
    if (catalog) {
      for (const auto& [id, version] : catalog->versions()) ids.push_back(id);
      return ids;
    }
    // It stays where it is: the next start sets it aside and records what is whole.
    report_.faults.push_back({layout_.catalog().string(), catalog.error().message(), {}, false});
    std::error_code error;
    for (const auto& each : fs::directory_iterator(layout_.versions(), error)) {
      const auto digest = store::try_parse_digest_hex(each.path().stem().string());
      if (digest && each.path().extension() == ".json") ids.push_back(digest_text(*digest));
    }
    std::ranges::sort(ids);
    return ids;
  }

  void check_version(const std::string& id) {
    const auto content = store::blocking_read_version(layout_, id);
    ++report_.versions;
    if (!content) {
      add_fault(layout_.manifest(id), content.error().message(), {id});
      return;
    }
    contents_.emplace(id, *content);
    const auto sizes = store::entry_sizes((*content)->manifest);
    for (std::size_t entry = 0; entry < sizes.size(); ++entry) {
      const auto& values = (*content)->blocks[entry];
      for (std::uint64_t block = 0; block < values.size(); ++block) {
        Wanted& wanted = wanted_[values[block]];
        wanted.entry_bytes = sizes[entry];
        wanted.block = block;
        if (wanted.versions.empty() || wanted.versions.back() != id) wanted.versions.push_back(id);
      }
    }
  }

  void check_object(const Digest& digest, const Wanted& wanted) {
    const fs::path path = layout_.object(digest);
    const auto file = File::open(path);
    if (!file) return add_fault(path, file.error().message(), wanted.versions);
    ++report_.objects;
    report_.bytes += file->size_bytes();
    const std::uint64_t length = block_length(wanted.entry_bytes, wanted.block);
    if (file->size_bytes() != length) {
      return add_fault(path, fmt::format("{} bytes, expected {}", file->size_bytes(), length),
                       wanted.versions);
    }
    memory_.resize(static_cast<std::size_t>(length));
    const auto read = file->blocking_read_at(0, memory_);
    if (!read) return add_fault(path, read.error().message(), wanted.versions);
    const Digest found = block_digest(wanted.entry_bytes, wanted.block, memory_);
    if (found == digest) return;
    add_fault(path, fmt::format("its bytes are {}", digest_text(found)), wanted.versions);
  }

  void count_unreferenced() {
    std::error_code error;
    for (const auto& each : fs::recursive_directory_iterator(layout_.objects(), error)) {
      const auto digest = store::try_parse_digest_hex(each.path().filename().string());
      if (digest && !wanted_.contains(*digest)) ++report_.unreferenced;
    }
  }

  // One that is bad harms no version: the next start drops it.
  void check_deltas() {
    for (const fs::path& path : store::names_in(layout_.deltas())) {
      const auto ids = store::try_parse_delta_name(path);
      if (!ids) continue;
      const auto target = contents_.find(ids->first), base = contents_.find(ids->second);
      if (target == contents_.end() || base == contents_.end()) continue;
      ++report_.deltas;
      const auto bytes = store::blocking_check_delta(layout_, *base->second, *target->second);
      if (!bytes) {
        add_fault(path, bytes.error().message(), {});
      } else {
        report_.bytes += *bytes;
      }
    }
  }

  void add_fault(const fs::path& path, const std::string& what, std::vector<std::string> versions) {
    bool set_aside = false;
    std::error_code error;
    if (repair_ && fs::exists(path, error)) {
      const auto name = fmt::format("{}.{}", path.filename().string(), store::unix_ms());
      set_aside = disk_.make_dirs(layout_.aside()) && disk_.rename(path, layout_.aside() / name);
    }
    const std::string file = path.string() + ": ";  // what was read by its name says it already
    report_.faults.push_back({path.string(),
                              what.starts_with(file) ? what.substr(file.size()) : what,
                              std::move(versions), set_aside});
  }

  const store::Layout layout_;
  const store::Disk disk_;
  const bool repair_;
  std::map<Digest, Wanted> wanted_;
  std::map<std::string, std::shared_ptr<const VersionContent>> contents_;  // by id
  std::vector<std::byte> memory_;
  FsckReport report_;
};

}  // namespace

Result<FsckReport> blocking_fsck(const fs::path& folder, bool repair) {
  store::Layout layout{folder};
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return Error(ErrorCode::kNotFound, fmt::format("{}: no such folder", folder.string()));
  }
  WEFT_TRY(const auto lock, store::blocking_lock(layout));
  return Fsck(std::move(layout), repair).blocking_run();
}

}  // namespace weft
