#include "weft/store/store.h"

#include <future>

#include "weft/base/log.h"
#include "weft/store/internal/delta_worker.h"
#include "weft/store/internal/intake.h"

namespace weft {
namespace {

class StoreImpl final : public Store {
 public:
  StoreImpl(store::Layout layout, FolderLock lock, StoreOptions options)
      : lock_(std::move(lock)),
        disk_(std::move(options.disk_hook)),
        archive_(
            std::make_shared<store::Archive>(std::move(layout), disk_, jobs_, options.retention)),
        intake_(std::make_shared<store::Intake>(
            archive_, disk_, jobs_, opens_,
            store::IntakeOptions{options.lease, options.keep_staged, options.max_uploads,
                                 options.max_version_bytes, will_commit(options.deltas)})),
        makes_deltas_(options.deltas) {}
  ~StoreImpl() override {
    deltas_.blocking_stop();
    opens_.blocking_stop();
    jobs_.blocking_stop();
  }

  Result<void> blocking_load() {
    WEFT_TRY_VOID(archive_->blocking_load());
    intake_->blocking_load();
    if (makes_deltas_) expect_missed_deltas();
    return {};
  }

  std::shared_ptr<UploadHost> uploads() override { return intake_; }
  VersionSource& versions() override { return *archive_; }

  Result<CollectReport> blocking_collect() override {
    intake_->sweep();
    std::promise<Result<CollectReport>> promise;
    auto collected = promise.get_future();
    jobs_.post([this, &promise] {
      auto done = archive_->blocking_collect(store::unix_ms());
      if (!done) return promise.set_value(done.error());
      promise.set_value(CollectReport{std::move(done->versions), done->objects, done->bytes});
    });
    return collected.get();
  }

  void blocking_finish_deltas() override { deltas_.blocking_finish(); }

  StoreStats stats() override {
    const auto archive = archive_->stats();
    const auto intake = intake_->stats();
    StoreStats stats;
    stats.versions = archive.versions;
    stats.objects = archive.objects;
    stats.object_bytes = archive.bytes;
    stats.bytes_out = archive.bytes_out;
    stats.uploads_open = intake.open;
    stats.blocks_in = intake.blocks;
    for (std::size_t i = 0; i < intake.bytes_in.size(); ++i) {
      stats.bytes_in.emplace(encoding_name(static_cast<Encoding>(i)), intake.bytes_in.at(i));
    }
    stats.refused = intake.refused;
    const store::DeltaStats deltas = archive_->delta_stats();
    stats.deltas = deltas.deltas;
    stats.delta_bytes = deltas.bytes;
    store::DeltaWork work = deltas_.work();
    stats.deltas_made = work.made;
    stats.deltas_given_up = std::move(work.given_up);
    return stats;
  }

 private:
  // Those to the newest versions that a stop or a crash came before.
  void expect_missed_deltas() {
    for (const Head& head : archive_->heads()) {
      const auto record = archive_->version(head.id);
      const auto make = record ? deltas_.expect(head.id, record->parent) : nullptr;
      if (make) make();
    }
  }

  decltype(store::IntakeOptions::will_commit) will_commit(bool deltas) {
    if (!deltas) return {};
    return
        [this](const std::string& id, const std::string& base) { return deltas_.expect(id, base); };
  }

  FolderLock lock_;
  store::Disk disk_;
  JobThread jobs_{"weft-blk-0", JobThread::Rest::kDrop};
  JobThread opens_{"weft-blk-1", JobThread::Rest::kDrop};
  std::shared_ptr<store::Archive> archive_;
  store::DeltaWorker deltas_{archive_};
  std::shared_ptr<store::Intake> intake_;
  const bool makes_deltas_;
};

}  // namespace

Result<std::unique_ptr<Store>> Store::blocking_open(const std::filesystem::path& folder,
                                                    StoreOptions options) {
  store::Layout layout{folder};
  WEFT_TRY(auto lock, store::blocking_lock(layout));
  auto made = std::make_unique<StoreImpl>(std::move(layout), std::move(lock), std::move(options));
  WEFT_TRY_VOID(made->blocking_load());
  return std::unique_ptr<Store>(std::move(made));
}

}  // namespace weft
