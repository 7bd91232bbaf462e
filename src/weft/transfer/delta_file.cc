#include "weft/transfer/delta_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

namespace weft {
namespace {

namespace fs = std::filesystem;
using View = std::span<const std::byte>;

constexpr std::string_view kMagic = "weftdiff";
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kDigestBytes = sizeof(Digest::bytes);
constexpr std::size_t kWordBytes = 8;
constexpr std::size_t kHeaderBytes = 4 * kWordBytes;  // magic, version, two lengths
// Of the manifest, and of the index. Far more than a terabyte of weights needs.
constexpr std::uint64_t kMaxPartBytes = 1ull << 30;
constexpr std::size_t kPieceBytes = 1 << 20;  // that are read and hashed at a time

void put(std::string& out, std::uint64_t number) {
  for (unsigned shift = 0; shift < 64; shift += 8) out += static_cast<char>(number >> shift);
}
std::uint64_t word(View bytes, std::size_t i) {
  std::uint64_t number = 0;
  for (unsigned b = 0; b < kWordBytes; ++b) {
    number |= std::to_integer<std::uint64_t>(bytes[i * kWordBytes + b]) << 8 * b;
  }
  return number;
}

Error corrupt(const std::string& what) {
  return {ErrorCode::kCorrupt, "delta file: " + what};
}

// A file that is there under a name of its own until it gets its own, or is gone. One thread.
class NewFile {
 public:
  // `suffix`: of its name until then.
  static Result<NewFile> create(const fs::path& path, std::string_view suffix) {
    NewFile file(path, fmt::format("{}.{}.{}", path.string(), ::getpid(), suffix));
    file.fd_ = ::open(file.temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file.fd_ < 0) return file_error(path, "create", errno);
    return file;
  }
  NewFile(NewFile&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_(std::exchange(other.temporary_, {})),
        fd_(std::exchange(other.fd_, -1)) {}
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  const fs::path& temporary() const { return temporary_; }

  Result<void> append(View bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return file_error(path_, "write", errno);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
    return {};
  }

  // Synced, and under its own name.
  Result<void> finish() {
    if (::fsync(fd_) != 0) return file_error(path_, "sync", errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      return file_error(path_, "replace", errno);
    }
    temporary_.clear();
    std::error_code ignored;
    return blocking_sync_folder(fs::absolute(path_, ignored).parent_path());
  }

 private:
  NewFile(fs::path path, fs::path temporary)
      : path_(std::move(path)), temporary_(std::move(temporary)) {}

  fs::path path_, temporary_;
  int fd_ = -1;
};

// Calls `take` for all bytes from `offset` on, piece by piece.
template <typename Take>
Result<void> blocking_scan(const File& file, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                           Take take) {
  std::vector<std::byte> memory(std::min<std::uint64_t>(kPieceBytes, size_bytes));
  while (size_bytes > 0) {
    const auto piece = std::span(memory).first(std::min<std::uint64_t>(memory.size(), size_bytes));
    WEFT_TRY_VOID(file.blocking_read_at(offset_bytes, piece));
    WEFT_TRY_VOID(take(View(piece)));
    offset_bytes += piece.size();
    size_bytes -= piece.size();
  }
  return {};
}

Result<Digest> blocking_read_digest(const File& file, std::uint64_t offset_bytes) {
  Digest digest;
  WEFT_TRY_VOID(file.blocking_read_at(offset_bytes, digest.bytes));
  return digest;
}

}  // namespace

Result<DeltaFileReport> blocking_write_delta_file(const fs::path& path, const VersionBlocks& base,
                                                  const VersionBlocks& target,
                                                  const DeltaMakeOptions& options) {
  // The index goes before the packs and is known after them.
  WEFT_TRY(NewFile packs, NewFile::create(path, "packs.tmp"));
  WEFT_TRY(
      const DeltaIndex index,
      blocking_make_delta(
          base, target, [&](std::size_t, View payload) { return packs.append(payload); }, options));
  const std::string& manifest = target.content().manifest_json;
  const std::string index_bytes = encode_delta_index(index);
  std::string header(kMagic);
  put(header, kVersion);
  put(header, manifest.size());
  put(header, index_bytes.size());

  WEFT_TRY(NewFile file, NewFile::create(path, "tmp"));
  Hasher hasher;
  const auto append = [&](View bytes) {
    hasher.update(bytes);
    return file.append(bytes);
  };
  for (const std::string* const part : {&std::as_const(header), &manifest, &index_bytes}) {
    WEFT_TRY_VOID(append(std::as_bytes(std::span(*part))));
  }
  WEFT_TRY(const File written, File::open(packs.temporary()));
  WEFT_TRY_VOID(blocking_scan(written, 0, delta_payload_bytes(index), append));
  WEFT_TRY_VOID(file.append(hasher.finish().bytes));
  WEFT_TRY_VOID(file.finish());
  DeltaFileReport report;
  report.index_bytes = index_bytes.size();
  report.payload_bytes = delta_payload_bytes(index);
  report.file_bytes =
      header.size() + manifest.size() + index_bytes.size() + report.payload_bytes + kDigestBytes;
  report.blocks = index.blocks.size();
  return report;
}

Result<DeltaFile> DeltaFile::blocking_open(const fs::path& path) {
  WEFT_TRY(File opened, File::open(path));
  DeltaFile file(std::move(opened));
  if (auto read = file.blocking_read(); !read) {
    return std::move(read).error().with_context(path.string());
  }
  return file;
}

Result<void> DeltaFile::blocking_read() {
  const std::uint64_t size_bytes = file_.size_bytes();
  constexpr std::uint64_t kFrameBytes = kHeaderBytes + kDigestBytes;
  if (size_bytes < kFrameBytes) {
    return corrupt(fmt::format("{} bytes, expected at least {}", size_bytes, kFrameBytes));
  }
  std::string text(kHeaderBytes, '\0');
  WEFT_TRY_VOID(file_.blocking_read_at(0, std::as_writable_bytes(std::span(text))));
  if (!text.starts_with(kMagic)) return corrupt(fmt::format("does not begin with `{}`", kMagic));
  const std::uint64_t version = word(std::as_bytes(std::span(text)), 1);
  const std::uint64_t manifest_bytes = word(std::as_bytes(std::span(text)), 2);
  const std::uint64_t index_bytes = word(std::as_bytes(std::span(text)), 3);
  if (version != kVersion) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("delta file: format version {}, expected {}", version, kVersion));
  }
  if (std::max(manifest_bytes, index_bytes) > kMaxPartBytes ||
      manifest_bytes + index_bytes > size_bytes - kFrameBytes) {
    return corrupt(fmt::format("{} bytes are too few for a manifest of {} and an index of {}",
                               size_bytes, manifest_bytes, index_bytes));
  }
  text.resize(kHeaderBytes + static_cast<std::size_t>(manifest_bytes + index_bytes));
  WEFT_TRY_VOID(file_.blocking_read_at(0, std::as_writable_bytes(std::span(text))));
  const std::string_view manifest =
      std::string_view(text).substr(kHeaderBytes, static_cast<std::size_t>(manifest_bytes));
  const auto index = std::as_bytes(std::span(text)).last(static_cast<std::size_t>(index_bytes));
  WEFT_TRY(index_, parse_delta_index(index));
  if (digest_of(std::as_bytes(std::span(manifest))) != index_.target) {
    return corrupt("the manifest is not that of version " + digest_text(index_.target));
  }
  WEFT_TRY(manifest_, parse_manifest(manifest));
  if (delta_payload_bytes(index_) != size_bytes - kDigestBytes - text.size()) {
    return corrupt(fmt::format("{} bytes of packs, expected {}",
                               size_bytes - kDigestBytes - text.size(),
                               delta_payload_bytes(index_)));
  }
  offsets_bytes_.reserve(index_.blocks.size());
  std::uint64_t offset = text.size();
  for (const DeltaBlock& row : index_.blocks) {
    offsets_bytes_.push_back(offset);
    offset += row.payload_bytes;
  }
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(text)));
  return blocking_check_packs(std::move(hasher));
}

Result<void> DeltaFile::blocking_check_packs(Hasher hasher) {
  std::uint64_t offset = file_.size_bytes() - kDigestBytes - delta_payload_bytes(index_);
  for (std::size_t i = 0; i < index_.packs.size(); ++i) {
    Hasher pack;
    WEFT_TRY_VOID(
        blocking_scan(file_, offset, index_.packs[i].size_bytes, [&](View bytes) -> Result<void> {
          hasher.update(bytes);
          pack.update(bytes);
          return {};
        }));
    if (pack.finish() != index_.packs[i].digest) {
      return corrupt(fmt::format("pack {} has another digest than the index says", i));
    }
    offset += index_.packs[i].size_bytes;
  }
  WEFT_TRY(const Digest expected, blocking_read_digest(file_, offset));
  if (hasher.finish() == expected) return {};
  return corrupt("does not have the digest at its end");
}

Result<View> DeltaFile::blocking_read_payload(std::size_t row, std::span<std::byte> scratch) const {
  WEFT_TRY_VOID(file_.blocking_read_at(offsets_bytes_.at(row), scratch));
  return View(scratch);
}

}  // namespace weft
