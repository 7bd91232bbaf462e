#include "weft/transfer/memory_versions.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include "weft/base/clock.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/tensor/weight_set.h"
#include "weft/transfer/delta_maker.h"
#include "weft/transfer/version_blocks.h"

namespace weft {
namespace {

constexpr const char* kHead = "main";

Error not_here(std::string_view what) {
  return Error(ErrorCode::kConflict,
               fmt::format("{}: this process offers what it made last, and nothing else", what));
}

Error no_version(const std::string& id) {
  return Error(ErrorCode::kNotFound, fmt::format("no version {} here", id));
}

// A version's bytes: what is read from `source` for the first time is copied, and then lies here.
class Copy final : public TensorSource {
 public:
  static Result<std::unique_ptr<Copy>> create(const TensorSource& source,
                                              std::shared_ptr<WeightSet> set,
                                              const OfferOptions& options);

  const std::vector<TensorSpec>& tensors() const override { return set_->layout().tensors(); }
  const std::vector<OfferedFile>& files() const override { return files_; }
  Result<std::span<const std::byte>> blocking_read(std::size_t entry, std::uint64_t offset_bytes,
                                                   std::span<std::byte> scratch) const override {
    const auto out = memory_[entry].subspan(static_cast<std::size_t>(offset_bytes), scratch.size());
    if (source_ == nullptr) return std::span<const std::byte>(out);
    WEFT_TRY(const auto bytes, source_->blocking_read(from_[entry], offset_bytes, out));
    if (bytes.data() != out.data()) std::memcpy(out.data(), bytes.data(), out.size());
    const std::uint64_t done = done_bytes_ += out.size();
    const bool is_worth_telling =
        done == total_bytes_ || done / kBlockBytes != (done - out.size()) / kBlockBytes;
    if (progress_ && is_worth_telling) progress_(done, total_bytes_);
    return std::span<const std::byte>(out);
  }
  bool is_costly() const override { return source_ != nullptr && source_->is_costly(); }
  // All of it is here.
  void complete() {
    source_ = nullptr;
    progress_ = nullptr;
  }

  std::span<const std::byte> bytes(std::size_t entry) const { return memory_.at(entry); }
  std::uint64_t total_bytes() const { return total_bytes_; }

 private:
  Copy(const TensorSource& source, std::shared_ptr<WeightSet> set, const OfferOptions& options)
      : source_(&source), set_(std::move(set)), progress_(options.progress) {}

  const TensorSource* source_;
  const std::shared_ptr<WeightSet> set_;
  std::vector<OfferedFile> files_;
  std::vector<std::vector<std::byte>> texts_;  // of the files
  std::vector<std::span<std::byte>> memory_;   // [entries]
  std::vector<std::size_t> from_;              // [entries] of the source
  std::function<void(std::uint64_t, std::uint64_t)> progress_;
  std::uint64_t total_bytes_ = 0;
  mutable std::atomic<std::uint64_t> done_bytes_{0};
};

Result<std::unique_ptr<Copy>> Copy::create(const TensorSource& source,
                                           std::shared_ptr<WeightSet> set,
                                           const OfferOptions& options) {
  std::unique_ptr<Copy> copy(new Copy(source, std::move(set), options));
  std::map<std::string_view, std::size_t> places;
  for (const TensorSpec& spec : source.tensors()) places.emplace(spec.name, places.size());
  for (std::size_t i = 0; i < copy->tensors().size(); ++i) {
    copy->memory_.push_back(copy->set_->tensor(i));
    copy->from_.push_back(places.at(copy->tensors()[i].name));
  }
  copy->files_ = source.files();
  copy->texts_.resize(copy->files_.size());
  for (std::size_t i = 0; i < copy->files_.size(); ++i) {
    copy->texts_[i].resize(static_cast<std::size_t>(copy->files_[i].size_bytes));
    copy->memory_.emplace_back(copy->texts_[i]);
    copy->from_.push_back(source.tensors().size() + i);
  }
  for (const auto& bytes : copy->memory_) copy->total_bytes_ += bytes.size();
  return copy;
}

struct Held {
  std::unique_ptr<Copy> copy;
  SourceVersion version;
  VersionRecord record;

  const VersionContent& content() const { return version.content(); }
  // An entry of the manifest. Tensors are in its order already.
  std::span<const std::byte> bytes(std::size_t entry) const {
    const std::size_t tensors = content().manifest.tensors.size();
    if (entry < tensors) return copy->bytes(entry);
    const auto file = std::ranges::find(
        copy->files(), content().manifest.files[entry - tensors].name, &OfferedFile::name);
    return copy->bytes(tensors + static_cast<std::size_t>(file - copy->files().begin()));
  }
};
using HeldPtr = std::shared_ptr<const Held>;

class HeldData final : public VersionData {
 public:
  explicit HeldData(HeldPtr held) : held_(std::move(held)) {}

  const VersionContent& content() const override { return held_->content(); }
  Result<void> append(std::size_t entry, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                      std::vector<http::BodyPart>& parts) const override {
    parts.push_back({.bytes = held_->bytes(entry).subspan(static_cast<std::size_t>(offset_bytes),
                                                          static_cast<std::size_t>(size_bytes))});
    return {};
  }
  // What somebody reads is not written over.
  std::shared_ptr<void> on_revoke(std::function<void()>) const override { return nullptr; }

 private:
  const HeldPtr held_;
};

// Packs in files without a name, since that is what deltas are sent from.
class DeltaInMemory final : public OfferedDelta {
 public:
  DeltaInMemory() = default;
  ~DeltaInMemory() override {
    for (const int pack : packs_) ::close(pack);
  }
  DeltaInMemory(const DeltaInMemory&) = delete;
  DeltaInMemory& operator=(const DeltaInMemory&) = delete;

  Result<void> blocking_make(const VersionBlocks& base, const VersionBlocks& target,
                             const DeltaMakeOptions& options) {
    const auto sink = [this](std::size_t pack, std::span<const std::byte> payload) {
      return append(pack, payload);
    };
    WEFT_TRY(index_, blocking_make_delta(base, target, sink, options));
    index_bytes_ = encode_delta_index(index_);
    return {};
  }

  const DeltaIndex& index() const override { return index_; }
  const std::string& index_bytes() const override { return index_bytes_; }
  Result<std::shared_ptr<const File>> open_pack(std::size_t pack) const override {
    WEFT_TRY(File file, File::open(fmt::format("/proc/self/fd/{}", packs_.at(pack))));
    return std::make_shared<const File>(std::move(file));
  }

 private:
  Result<void> append(std::size_t pack, std::span<const std::byte> payload) {
    if (pack == packs_.size()) {
      const int fd = ::memfd_create("weft-delta", MFD_CLOEXEC);
      if (fd < 0) return file_error("a delta's pack", "create", errno);
      packs_.push_back(fd);
    }
    while (!payload.empty()) {
      const ssize_t count = ::write(packs_.back(), payload.data(), payload.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return file_error("a delta's pack", "write", errno);
      payload = payload.subspan(static_cast<std::size_t>(count));
    }
    return {};
  }

  DeltaIndex index_;
  std::string index_bytes_;
  std::vector<int> packs_;
};

VersionRecord record_of(const VersionContent& content, const OfferOptions& options) {
  VersionRecord record;
  record.id = content.id;
  if (!options.label.empty()) record.labels = {options.label};
  record.created_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  record.tensors = content.manifest.tensors.size();
  for (std::size_t i = 0; i < entry_count(content.manifest); ++i) {
    record.bytes += entry_size_bytes(content.manifest, i);
  }
  return record;
}

class Versions final : public MemoryVersions, public std::enable_shared_from_this<Versions> {
 public:
  Result<OfferReport> blocking_offer(const TensorSource& source,
                                     const OfferOptions& options) override;

  std::vector<VersionRecord> versions() override {
    const std::lock_guard lock(mutex_);
    std::vector<VersionRecord> records;
    for (const HeldPtr& held : held_) {
      records.push_back(held->record);
      records.back().state = records.size() == 1 ? "serving" : "retired";
    }
    return records;
  }
  Result<VersionRecord> version(const std::string& id) override {
    for (VersionRecord& record : versions()) {
      if (record.id == id) return std::move(record);
    }
    return no_version(id);
  }
  std::vector<Head> heads() override {
    const std::lock_guard lock(mutex_);
    if (held_.empty()) return {};
    return {{kHead, held_.front()->content().id}};
  }
  std::shared_ptr<void> on_head_moved(std::function<void()> moved) override {
    const std::lock_guard lock(listeners_mutex_);
    const std::uint64_t number = ++last_listener_;
    listeners_.emplace(number, std::move(moved));
    return {nullptr, [weak = weak_from_this(), number](void*) {
              const auto self = weak.lock();
              if (!self) return;
              const std::lock_guard guard(self->listeners_mutex_);
              self->listeners_.erase(number);
            }};
  }
  void move_head(const std::string&, const std::string& name, const std::string&,
                 std::optional<std::string>, Done<CommitReport> done) override {
    done(not_here(name));
  }
  Result<void> delete_head(const std::string& name) override { return not_here(name); }
  Result<void> set_label(const std::string& label, const std::string&) override {
    return not_here(label);
  }
  Result<void> set_pin(const std::string& id, bool) override { return not_here(id); }
  Result<void> delete_version(const std::string& id) override { return not_here(id); }

  Result<std::shared_ptr<const VersionData>> open(const std::string& id) override {
    WEFT_TRY(HeldPtr held, find(id));
    return std::shared_ptr<const VersionData>(std::make_shared<const HeldData>(std::move(held)));
  }
  Result<std::shared_ptr<const VersionContent>> content(const std::string& id) override {
    WEFT_TRY(const HeldPtr held, find(id));
    return held->version.shared_content();
  }
  Result<Blob> find_blob(const Digest& digest) override;

  std::vector<OfferedDeltaPtr> deltas() override {
    const std::lock_guard lock(mutex_);
    if (!delta_) return {};
    return {delta_};
  }
  OfferedDeltaPtr try_find_delta(const std::string& id, const std::string& base) override {
    const std::lock_guard lock(mutex_);
    const bool is_it = delta_ && digest_text(delta_->index().target) == id &&
                       digest_text(delta_->index().base) == base;
    return is_it ? delta_ : nullptr;
  }

 private:
  Result<HeldPtr> find(const std::string& id) {
    const std::lock_guard lock(mutex_);
    for (const HeldPtr& held : held_) {
      if (held->content().id == id) return held;
    }
    return no_version(id);
  }
  // Memory that nobody reads.
  Result<std::shared_ptr<WeightSet>> blocking_free_set(std::vector<TensorSpec> specs);
  // Null where it would not be worth it.
  OfferedDeltaPtr blocking_delta(const HeldPtr& base, const Held& target,
                                 const OfferOptions& options) const;
  void notify();

  std::mutex offer_mutex_;  // one offer at a time; before the others; of sets_
  std::vector<std::shared_ptr<WeightSet>> sets_;
  std::mutex mutex_;                      // of what follows
  std::vector<HeldPtr> held_;             // the newest first
  OfferedDeltaPtr delta_;                 // to the newest
  std::recursive_mutex listeners_mutex_;  // of what follows; held while they are called
  std::map<std::uint64_t, std::function<void()>> listeners_;
  std::uint64_t last_listener_ = 0;
};

Result<std::shared_ptr<WeightSet>> Versions::blocking_free_set(std::vector<TensorSpec> specs) {
  WEFT_TRY(WeightLayout layout, WeightLayout::make(std::move(specs)));
  std::erase_if(sets_, [&](const auto& set) {
    return set->layout().tensors() != layout.tensors() && set.use_count() == 1;
  });
  for (const auto& set : sets_) {
    if (set.use_count() != 1 || set->layout().tensors() != layout.tensors()) continue;
    std::atomic_thread_fence(std::memory_order_acquire);  // its readers are done
    return set;
  }
  WEFT_TRY(auto set,
           WeightSet::blocking_allocate(std::make_shared<const WeightLayout>(std::move(layout))));
  sets_.push_back(set);
  return set;
}

OfferedDeltaPtr Versions::blocking_delta(const HeldPtr& base, const Held& target,
                                         const OfferOptions& options) const {
  if (!options.delta || !base || base->content().id == target.content().id ||
      base->copy->tensors() != target.copy->tensors()) {
    return nullptr;
  }
  auto delta = std::make_shared<DeltaInMemory>();
  const auto made = delta->blocking_make(base->version, target.version,
                                         {.threads = options.threads,
                                          .limit_bytes = target.copy->total_bytes() / 2,
                                          .trusted = true,
                                          .goal = options.delta_goal});
  if (made) return delta;
  log_info("no delta is offered: {}", made.error().message());
  return nullptr;
}

Result<OfferReport> Versions::blocking_offer(const TensorSource& source,
                                             const OfferOptions& options) {
  const std::lock_guard offer_lock(offer_mutex_);
  HeldPtr before;
  {
    const std::lock_guard lock(mutex_);
    if (held_.size() > 1) held_.resize(1);
    if (!held_.empty()) before = held_.front();
    delta_ = nullptr;
  }
  OfferReport report;
  const auto start = now();
  WEFT_TRY(auto set, blocking_free_set(source.tensors()));
  WEFT_TRY(auto copy, Copy::create(source, std::move(set), options));
  WEFT_TRY(SourceVersion version, SourceVersion::blocking_make(*copy, options.threads));
  copy->complete();
  report.id = version.content().id;
  report.total_bytes = copy->total_bytes();
  report.hash_seconds = seconds_since(start);
  VersionRecord record = record_of(version.content(), options);
  const auto held =
      std::make_shared<const Held>(Held{std::move(copy), std::move(version), std::move(record)});
  OfferedDeltaPtr delta = blocking_delta(before, *held, options);
  if (delta) report.delta_bytes = delta->total_bytes();
  report.delta_seconds = seconds_since(start) - report.hash_seconds;
  {
    const std::lock_guard lock(mutex_);
    // The same content again is the same version, under its new label.
    std::erase_if(held_, [&](const HeldPtr& it) { return it->content().id == report.id; });
    held_.insert(held_.begin(), held);
    delta_ = std::move(delta);
  }
  notify();
  return report;
}

Result<VersionSource::Blob> Versions::find_blob(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  for (const HeldPtr& held : held_) {
    const Manifest& manifest = held->content().manifest;
    for (std::size_t entry = 0; entry < entry_count(manifest); ++entry) {
      const std::size_t tensors = manifest.tensors.size();
      const Digest& theirs =
          entry < tensors ? manifest.tensors[entry].digest : manifest.files[entry - tensors].digest;
      if (theirs == digest) return Blob{std::make_shared<const HeldData>(held), entry};
    }
  }
  return Error(ErrorCode::kNotFound, fmt::format("no blob {} here", digest_text(digest)));
}

void Versions::notify() {
  const std::lock_guard lock(listeners_mutex_);
  const auto all = listeners_;  // one may take others off
  for (const auto& [number, moved] : all) {
    if (listeners_.contains(number)) moved();
  }
}

}  // namespace

std::shared_ptr<MemoryVersions> MemoryVersions::make() {
  return std::make_shared<Versions>();
}

}  // namespace weft
