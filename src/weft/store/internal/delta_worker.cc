#include "weft/store/internal/delta_worker.h"

#include <future>
#include <utility>

#include <unistd.h>

#include "weft/base/log.h"
#include "weft/base/wording.h"
#include "weft/store/internal/archive_data.h"

namespace weft::store {
namespace {

// Of the scheduler's 20: uploads and pulls go first.
constexpr int kNice = 10;
// A delta has to be under so many tenths of the version.
constexpr std::uint64_t kWorthTenths = 7;

}  // namespace

std::function<void()> DeltaWorker::expect(const std::string& id, const std::string& base) {
  if (!archive_->hold(base)) return {};
  return [this, id, base, expected = archive_->expect_delta(id)]() mutable {
    thread_.post([this, id, base, held = std::move(expected)] { blocking_try(id, base); });
  };
}

void DeltaWorker::blocking_try(const std::string& id, const std::string& base) {
  const auto made = blocking_make(id, base);
  work_.with([&](DeltaWork& work) {
    if (made) {
      ++work.made;
    } else {
      ++work.given_up[error_traits(made.error().code()).name];
    }
  });
  if (!made) log_info("store: no delta to {} from {}: {}", id, base, made.error().message());
}

Result<void> DeltaWorker::blocking_make(const std::string& id, const std::string& base) {
  // Of this thread alone, and of those that it starts.
  if (!std::exchange(is_nice_, true)) static_cast<void>(::nice(kNice));
  if (archive_->try_find_delta(id, base)) return {};
  WEFT_TRY(auto target_version, archive_->hold(id));
  WEFT_TRY(auto base_version, archive_->hold(base));
  const auto target = make_version_blocks(archive_, std::move(target_version));
  const auto from = make_version_blocks(archive_, std::move(base_version));
  std::uint64_t full_bytes = 0;
  for (const std::uint64_t bytes : entry_sizes(target->content().manifest)) full_bytes += bytes;
  DeltaMakeOptions options;
  options.limit_bytes = full_bytes / 10 * kWorthTenths;
  options.cancelled = [this] { return stopped_.load(); };
  WEFT_TRY_VOID(archive_->blocking_make_delta(*from, *target, options));
  if (const auto delta = archive_->try_find_delta(id, base)) {
    log_info("store: a delta to {} from {}: {} in {}, {} bytes for {}", id, base,
             counted(delta->index().blocks.size(), "block"),
             counted(delta->index().packs.size(), "pack"), delta->total_bytes(), full_bytes);
  }
  return {};
}

void DeltaWorker::blocking_finish() {
  std::promise<void> promise;
  auto done = promise.get_future();
  thread_.post([&promise] { promise.set_value(); });
  done.wait();
}

void DeltaWorker::blocking_stop() {
  stopped_ = true;
  thread_.blocking_stop();
}

}  // namespace weft::store
