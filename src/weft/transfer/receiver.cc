#include "weft/transfer/receiver.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <utility>

#include <fmt/core.h>

#include "weft/base/clock.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/transfer/internal/core.h"
#include "weft/transfer/internal/messages.h"
#include "weft/transfer/internal/resident_source.h"
#include "weft/transfer/pull_routes.h"
#include "weft/transfer/upload_routes.h"

namespace weft {
namespace {

using internal::Core;

class ReceiverImpl final : public Receiver {
 public:
  explicit ReceiverImpl(std::shared_ptr<Core> core)
      : core_(std::move(core)), source_(internal::make_resident_source(core_)) {}
  ~ReceiverImpl() override { core_->blocking_shutdown(); }

  std::vector<http::Route> routes() override;
  std::shared_ptr<UploadHost> upload_host() override { return core_; }
  VersionSource& source() override { return *source_; }

  void start_update(const std::string& owner, Done done) override { done(core_->start(owner)); }
  Result<void> check_started(const std::string& owner) override {
    return core_->check_started(owner);
  }
  void update(const std::string& owner, std::optional<std::string> path, Done done) override {
    core_->update(owner, std::move(path), std::move(done));
  }
  void refuse_update(const std::string& owner, const Error& error) override {
    core_->refuse(owner, error);
  }
  void finish_update(const std::string& owner, std::optional<std::string> label,
                     std::optional<OnUpdate> on_update, Done done) override {
    core_->finish(owner, std::move(label), on_update,
                  [done = std::move(done)](const Result<CommitReport>& report) {
                    done(report ? Result<void>() : report.error());
                  });
  }
  std::optional<std::uint64_t> predicted_stall_us() override { return core_->predicted_stall_us(); }
  Result<void> set_label(const std::string& label) override { return core_->set_label(label); }
  ReceiverMetrics metrics() override { return core_->metrics(); }
  void checksums(
      std::function<void(std::vector<std::pair<std::string, std::string>>)> done) override {
    core_->checksums(std::move(done));
  }

 private:
  std::shared_ptr<Core> core_;
  std::unique_ptr<VersionSource> source_;
};

std::vector<http::Route> ReceiverImpl::routes() {
  auto table = upload_routes(core_);
  for (http::Route& route : pull_routes(*source_)) table.push_back(std::move(route));
  http::Route current;
  current.method = "GET";
  current.pattern = "/weft/v1/versions/current";
  current.access = http::Access::kRead;
  current.handler = [core = core_](const http::Request&,
                                   const std::shared_ptr<http::Exchange>& exchange) {
    auto response = http::json_response(internal::version_json(*core->status().serving));
    response.headers.set("Cache-Control", "no-store");
    exchange->respond(std::move(response));
  };
  table.push_back(std::move(current));
  return table;
}

// What the machine can still give; all there is where it does not say.
std::uint64_t blocking_free_memory_bytes() {
  constexpr std::string_view kKey = "MemAvailable:";
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kKey)) continue;
    const auto digits = line.find_first_of("0123456789");
    if (digits == std::string::npos) break;
    std::uint64_t kib = 0;
    if (std::from_chars(line.data() + digits, line.data() + line.size(), kib).ec == std::errc())
      return kib * 1024;
  }
  return UINT64_MAX;
}

// Null: patch mode.
Result<std::shared_ptr<WeightSet>> blocking_second_set(
    const std::shared_ptr<const WeightLayout>& layout, const ReceiverOptions& options) {
  const std::uint64_t set_bytes = layout->size_bytes();
  if (options.commit_mode == CommitMode::kPatch) return std::shared_ptr<WeightSet>();
  if (options.commit_mode == CommitMode::kAutomatic) {
    const bool fits = options.memory_limit_bytes == 0 ? set_bytes < blocking_free_memory_bytes()
                                                      : set_bytes <= options.memory_limit_bytes / 2;
    if (!fits) return std::shared_ptr<WeightSet>();
  }
  auto set = WeightSet::blocking_allocate(layout);
  if (set) return set;
  if (options.commit_mode == CommitMode::kAutomatic) return std::shared_ptr<WeightSet>();
  return std::move(set).error().with_context("the second set of weights");
}

}  // namespace

Result<std::unique_ptr<Receiver>> Receiver::blocking_create(std::shared_ptr<WeightSet> serving,
                                                            WeightTarget& target,
                                                            ReceiverOptions options) {
  const auto layout = std::shared_ptr<const WeightLayout>(serving, &serving->layout());
  WEFT_TRY(auto second, blocking_second_set(layout, options));
  constexpr std::uint64_t kPatchShare = 10;  // of a set: with undo logs 1.13 of the model at most
  ReceiverRules rules;
  rules.lease = options.lease;
  rules.tied_embeddings = options.tied_embeddings;
  rules.patch_mode = second == nullptr;
  rules.max_patch_bytes =
      options.max_patch_bytes == 0 ? layout->size_bytes() / kPatchShare : options.max_patch_bytes;
  rules.on_third = options.on_third;
  rules.reader_grace = options.reader_grace;
  if (rules.patch_mode && options.on_update == OnUpdate::kFinish) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("on_update finish needs a second set of weights, and there is no "
                             "memory for {} bytes",
                             layout->size_bytes()));
  }
  if (rules.patch_mode)
    log_info("weights: one set of {} bytes, patched in place", layout->size_bytes());
  const auto files = options.files ? *options.files : ModelFiles();
  const auto start = now();
  Resident served = internal::blocking_hash_resident(*serving, files, target.current());
  if (options.state) WEFT_TRY_VOID(options.state->check_saved(served.name.id));
  served.provenance.created_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                                     std::chrono::system_clock::now().time_since_epoch())
                                     .count();
  const double hash_seconds = seconds_since(start);
  target.rename(served.name);
  auto core = std::make_shared<Core>(std::array{std::move(serving), std::move(second)},
                                     std::move(served), target, options, rules);
  core->add_time(UpdateStage::kHash, hash_seconds);
  return std::unique_ptr<Receiver>(std::make_unique<ReceiverImpl>(std::move(core)));
}

}  // namespace weft
