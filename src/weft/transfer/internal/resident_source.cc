#include "weft/transfer/internal/resident_source.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

namespace weft::internal {
namespace {

Error no_version(const std::string& id) {
  return Error(ErrorCode::kNotFound, fmt::format("no version {} here", id));
}

Error not_here(std::string_view what) {
  return Error(ErrorCode::kConflict,
               fmt::format("{}: a server holds what it serves and what it served before", what));
}

class ResidentData final : public VersionData {
 public:
  ResidentData(std::shared_ptr<Core> core, Core::Reading reading)
      : core_(std::move(core)), reading_(std::move(reading)) {}
  ResidentData(const ResidentData&) = delete;
  ResidentData& operator=(const ResidentData&) = delete;
  ~ResidentData() override { core_->end_read(reading_.index); }

  const VersionContent& content() const override { return *reading_.resident.content; }

  Result<void> append(std::size_t entry, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                      std::vector<http::BodyPart>& parts) const override {
    parts.push_back({.bytes = bytes_of(entry).subspan(static_cast<std::size_t>(offset_bytes),
                                                      static_cast<std::size_t>(size_bytes))});
    return {};
  }

  std::shared_ptr<void> on_revoke(std::function<void()> revoked) const override {
    return core_->on_revoke(reading_.index, std::move(revoked));
  }

 private:
  std::span<const std::byte> bytes_of(std::size_t entry) const {
    const std::size_t tensors = content().manifest.tensors.size();
    if (entry < tensors) return reading_.set->tensor(entry);
    const std::string& text = reading_.files->at(content().manifest.files[entry - tensors].name);
    return std::as_bytes(std::span(text));
  }

  const std::shared_ptr<Core> core_;
  const Core::Reading reading_;
};

VersionRecord record_of(const Resident& resident, const char* state, bool has_label) {
  VersionRecord record;
  record.id = resident.name.id;
  if (has_label) record.labels = {resident.name.label};
  record.parent = resident.provenance.parent;
  record.origin = resident.provenance.origin;
  record.created_ms = resident.provenance.created_ms;
  record.converted = resident.name.converted;
  const Manifest& manifest = resident.content->manifest;
  record.tensors = manifest.tensors.size();
  for (const ManifestTensor& tensor : manifest.tensors)
    record.bytes += tensor_size_bytes(tensor.spec).value();
  for (const ManifestFile& file : manifest.files) record.bytes += file.size_bytes;
  record.state = state;
  return record;
}

class ResidentSource final : public VersionSource {
 public:
  explicit ResidentSource(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  std::vector<VersionRecord> versions() override {
    const Core::Residents residents = core_->residents();
    std::vector<VersionRecord> records;
    if (residents.staged) records.push_back(record_of(*residents.staged, "staged", false));
    records.push_back(record_of(residents.serving, "serving", true));
    if (residents.retired) records.push_back(record_of(*residents.retired, "retired", true));
    return records;
  }

  Result<VersionRecord> version(const std::string& id) override {
    for (const VersionRecord& record : versions()) {
      if (record.id == id) return record;
    }
    return no_version(id);
  }

  std::vector<Head> heads() override { return {{kServedHead, core_->residents().serving.name.id}}; }

  std::shared_ptr<void> on_head_moved(std::function<void()> moved) override {
    return core_->on_head_moved(std::move(moved));
  }

  void move_head(const std::string& owner, const std::string& name, const std::string& id,
                 std::optional<std::string> expected, Done<CommitReport> done) override {
    if (name != kServedHead) return done(no_head(name));
    core_->roll_back(owner, id, expected, std::move(done));
  }

  Result<void> delete_head(const std::string&) override { return not_here("no head is removed"); }
  Result<void> set_pin(const std::string&, bool) override { return not_here("nothing is pinned"); }
  Result<void> delete_version(const std::string&) override {
    return not_here("no version is deleted");
  }

  Result<void> set_label(const std::string& label, const std::string& id) override {
    if (id != core_->residents().serving.name.id) return no_version(id);
    return core_->set_label(label);
  }

  Result<std::shared_ptr<const VersionData>> open(const std::string& id) override {
    return open(id, Core::Reader::kOutside);
  }
  Result<std::shared_ptr<const VersionData>> open_own(const std::string& id) override {
    return open(id, Core::Reader::kOwn);
  }

  Result<std::shared_ptr<const VersionContent>> content(const std::string& id) override {
    const Core::Residents residents = core_->residents();
    if (residents.serving.name.id == id) return residents.serving.content;
    if (residents.retired && residents.retired->name.id == id) return residents.retired->content;
    return no_version(id);
  }

  Result<Blob> find_blob(const Digest& digest) override {
    const Core::Residents residents = core_->residents();
    if (const auto entry = try_find(residents.serving, digest))
      return blob(residents.serving.name.id, *entry);
    if (residents.retired) {
      if (const auto entry = try_find(*residents.retired, digest))
        return blob(residents.retired->name.id, *entry);
    }
    return Error(ErrorCode::kNotFound, fmt::format("no blob {} here", digest_text(digest)));
  }

 private:
  Result<std::shared_ptr<const VersionData>> open(const std::string& id, Core::Reader reader) {
    WEFT_TRY(Core::Reading reading, core_->begin_read(id, reader));
    return std::shared_ptr<const VersionData>(
        std::make_shared<const ResidentData>(core_, std::move(reading)));
  }

  // The entry of that digest.
  static std::optional<std::size_t> try_find(const Resident& resident, const Digest& digest) {
    const Manifest& manifest = resident.content->manifest;
    const auto tensor = std::ranges::find(manifest.tensors, digest, &ManifestTensor::digest);
    if (tensor != manifest.tensors.end())
      return static_cast<std::size_t>(tensor - manifest.tensors.begin());
    const auto file = std::ranges::find(manifest.files, digest, &ManifestFile::digest);
    if (file == manifest.files.end()) return std::nullopt;
    return manifest.tensors.size() + static_cast<std::size_t>(file - manifest.files.begin());
  }

  Result<Blob> blob(const std::string& id, std::size_t entry) {
    WEFT_TRY(auto data, open(id));
    return Blob{std::move(data), entry};
  }

  const std::shared_ptr<Core> core_;
};

}  // namespace

std::unique_ptr<VersionSource> make_resident_source(std::shared_ptr<Core> core) {
  return std::make_unique<ResidentSource>(std::move(core));
}

}  // namespace weft::internal
