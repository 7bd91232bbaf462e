// A store whose process ends, or whose machine loses power, or whose disk is full, before each of
// the steps that it makes on disk.

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weft/base/file.h"
#include "weft/store/store_fixture.h"
#include "weft/testing/temporary_dir.h"

namespace weft::store_test {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;

const Error kDead(ErrorCode::kInternal, "the process is gone");
const Error kFull(ErrorCode::kNoSpace, "the disk is full");

// Fails from step `at` on, and knows what a power failure could take then: the bytes of files and
// the names in folders that were not synced since they changed.
class LossyDisk {
 public:
  explicit LossyDisk(unsigned at) : at_(at) {}

  DiskHook hook() {
    return [this](DiskStep step, const fs::path& path, const fs::path& from) -> Result<void> {
      const std::lock_guard lock(mutex_);
      if (++steps_ >= at_) return kDead;
      record(step, path, from);
      return {};
    };
  }
  bool failed() const { return steps_ >= at_; }

  // Takes each of the unsynced effects with a chance of one half, the latest first.
  void lose(unsigned seed) {
    std::mt19937 random(seed);
    for (auto effect = effects_.rbegin(); effect != effects_.rend(); ++effect) {
      if (random() % 2 == 0 || !fs::exists(effect->path)) continue;
      if (!effect->is_name) {
        fs::resize_file(effect->path, fs::file_size(effect->path) / 2);
      } else if (effect->before) {
        std::ofstream(effect->path, std::ios::binary) << *effect->before;
      } else {
        fs::remove(effect->path);
      }
    }
  }

 private:
  struct Effect {
    fs::path path;
    bool is_name = false;               // a name, else bytes
    std::optional<std::string> before;  // what the name stood for
  };

  void record(DiskStep step, const fs::path& path, const fs::path& from) {
    switch (step) {
      case DiskStep::kRename:
        std::erase_if(effects_, [&](const Effect& e) { return e.is_name && e.path == from; });
        for (Effect& effect : effects_) {
          if (effect.path == from) effect.path = path;  // its bytes
        }
        [[fallthrough]];
      case DiskStep::kLink:
      case DiskStep::kCreate: {
        const auto text = blocking_read_file(path);
        effects_.push_back({path, true, text ? std::optional(*text) : std::nullopt});
        break;
      }
      case DiskStep::kWrite:
        effects_.push_back({path, false, std::nullopt});
        break;
      case DiskStep::kSyncFile:
        std::erase_if(effects_, [&](const Effect& e) { return !e.is_name && e.path == path; });
        break;
      case DiskStep::kSyncDir:
        std::erase_if(effects_,
                      [&](const Effect& e) { return e.is_name && e.path.parent_path() == path; });
        break;
      case DiskStep::kSyncAll:
        effects_.clear();
        break;
      case DiskStep::kRemove:
      case DiskStep::kMakeDir:
        break;
    }
  }

  std::mutex mutex_;
  const unsigned at_;
  unsigned steps_ = 0;
  std::vector<Effect> effects_;
};

constexpr unsigned kMaxSteps = 400;

StoreOptions options_with(DiskHook hook) {
  StoreOptions options;
  options.retention.keep_last = 1;
  options.disk_hook = std::move(hook);
  return options;
}

// A store with one version, which is its head.
std::string prepare(const fs::path& folder) {
  const auto store = Store::blocking_open(folder).value();
  return push(*store, small_model(1), as("one", "main")).value().version.id;
}

// What is under test: a push that shares a block with the version before, takes the head, and lets
// retention delete that version.
Result<CommitReport> second_push(const fs::path& folder, DiskHook hook) {
  WEFT_TRY(const auto store, Store::blocking_open(folder, options_with(std::move(hook))));
  Model model = small_model(2);
  model.data[1] = small_model(1).data[1];
  WEFT_TRY(const auto report, push(*store, model, as("two", "main"), false));
  WEFT_TRY_VOID(store->blocking_collect());
  return report;
}

// Whatever happened before: what is recorded is whole, the head is one of the two versions, and the
// push can be made again.
void check_after(const fs::path& folder, const std::string& first, unsigned step) {
  Model second = small_model(2);
  second.data[1] = small_model(1).data[1];
  {
    const auto store = Store::blocking_open(folder);
    ASSERT_TRUE(store) << store.error().message();
    const auto heads = (*store)->versions().heads();
    ASSERT_EQ(heads.size(), 1u) << "step " << step;
    for (const VersionRecord& record : (*store)->versions().versions()) {
      const auto pulled = pull(**store, record.id);
      ASSERT_TRUE(pulled) << "step " << step << ": " << pulled.error().message();
      const Model& expected = record.id == first ? small_model(1) : second;
      ASSERT_EQ(*pulled, expected.by_name()) << "step " << step;
    }
    ASSERT_TRUE((*store)->versions().version(heads[0].id)) << "step " << step;
  }
  EXPECT_THAT(blocking_fsck(folder, false).value().faults, IsEmpty()) << "step " << step;
  const auto again = second_push(folder, nullptr);
  ASSERT_TRUE(again) << "step " << step << ": " << again.error().message();
  const auto report = blocking_fsck(folder, false).value();
  EXPECT_THAT(report.faults, IsEmpty()) << "step " << step;
  EXPECT_EQ(report.versions, 1u);
  EXPECT_EQ(report.unreferenced, 0u) << "step " << step;
}

// The whole of a prepared folder, hard links and all.
void copy_folder(const fs::path& from, const fs::path& to) {
  fs::copy(from, to, fs::copy_options::recursive);
}

TEST(StoreCrash, TheProcessMayEndBeforeAnyStep) {
  const TemporaryDir dir;
  const std::string first = prepare(dir / "prepared");
  unsigned step = 1;
  for (bool ended = false; !ended; ++step) {
    ASSERT_LT(step, kMaxSteps);
    const fs::path folder = dir / std::to_string(step);
    copy_folder(dir / "prepared", folder);
    const pid_t child = ::fork();
    if (child == 0) {
      std::atomic<unsigned> steps = 0;
      const auto pushed =
          second_push(folder, [&](DiskStep, const fs::path&, const fs::path&) -> Result<void> {
            if (++steps == step) ::_exit(9);
            return {};
          });
      ::_exit(pushed ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_TRUE(WEXITSTATUS(status) == 9 || WEXITSTATUS(status) == 0);
    ended = WEXITSTATUS(status) == 0;
    ASSERT_NO_FATAL_FAILURE(check_after(folder, first, step));
    fs::remove_all(folder);
  }
  EXPECT_GT(step, 30u);
}

TEST(StoreCrash, PowerMayFailBeforeAnyStep) {
  const TemporaryDir dir;
  const std::string first = prepare(dir / "prepared");
  unsigned step = 1;
  for (bool ended = false; !ended; ++step) {
    ASSERT_LT(step, kMaxSteps);
    const fs::path folder = dir / std::to_string(step);
    copy_folder(dir / "prepared", folder);
    LossyDisk disk(step);
    static_cast<void>(second_push(folder, disk.hook()));
    ended = !disk.failed();
    disk.lose(step);
    ASSERT_NO_FATAL_FAILURE(check_after(folder, first, step));
    fs::remove_all(folder);
  }
  EXPECT_GT(step, 30u);
}

// A version that differs little from the first, whose delta is made meanwhile, on another thread.
Result<CommitReport> push_with_delta(const fs::path& folder, const std::string& first,
                                     DiskHook hook) {
  StoreOptions options;
  options.disk_hook = std::move(hook);
  WEFT_TRY(const auto store, Store::blocking_open(folder, std::move(options)));
  Model model = small_model(1);
  model.data[0][3] ^= std::byte{1};
  CommitRequest request = as("two", "main");
  request.parent = first;
  WEFT_TRY(const auto report, push(*store, model, request));
  store->blocking_finish_deltas();
  return report;
}

TEST(StoreCrash, PowerMayFailWhileADeltaIsMade) {
  const TemporaryDir dir;
  const std::string first = prepare(dir / "prepared");
  unsigned step = 1, offered = 0;
  for (bool ended = false; !ended; ++step) {
    ASSERT_LT(step, kMaxSteps);
    const fs::path folder = dir / std::to_string(step);
    copy_folder(dir / "prepared", folder);
    LossyDisk disk(step);
    static_cast<void>(push_with_delta(folder, first, disk.hook()));
    ended = !disk.failed();
    disk.lose(step);
    {
      StoreOptions options;
      options.deltas = false;  // those that are there, and no others
      const auto store = Store::blocking_open(folder, std::move(options));
      ASSERT_TRUE(store) << store.error().message();
      offered += static_cast<unsigned>((*store)->versions().deltas().size());
    }
    const auto report = blocking_fsck(folder, false).value();
    EXPECT_THAT(report.faults, IsEmpty()) << "step " << step;
    const auto again = push_with_delta(folder, first, nullptr);
    ASSERT_TRUE(again) << "step " << step << ": " << again.error().message();
    EXPECT_EQ(blocking_fsck(folder, false).value().deltas, 1u) << "step " << step;
    fs::remove_all(folder);
  }
  EXPECT_GT(step, 20u);
  EXPECT_GE(offered, 1u);
}

// Calls `call` until it succeeds; each failure must say that the disk is full.
template <typename Call>
auto persist(Call call) {
  for (int tries = 0;; ++tries) {
    auto result = call();
    if (result) return result;
    EXPECT_EQ(result.error().code(), ErrorCode::kNoSpace) << result.error().message();
    if (tries == 2) return result;
  }
}

TEST(StoreCrash, AFullDiskLosesNothingAndTheNextCallWorks) {
  const TemporaryDir dir;
  const Model model = small_model(1);
  unsigned step = 1;
  for (bool ended = false; !ended; ++step) {
    ASSERT_LT(step, kMaxSteps);
    const fs::path folder = dir / std::to_string(step);
    std::atomic<unsigned> steps = 0, fail_at = 0;
    StoreOptions options;
    options.disk_hook = [&](DiskStep, const fs::path&, const fs::path&) -> Result<void> {
      return ++steps == fail_at ? kFull : Result<void>();
    };
    const auto store = Store::blocking_open(folder, options).value();
    fail_at = steps + step;
    const Epoch epoch =
        persist([&] { return open_upload(*store, "a", offer_of(model, false)); }).value().epoch;
    persist([&] { return send_missing(*store, "a", epoch, model); }).value();
    persist([&] { return seal(*store, "a", epoch); }).value();
    const CommitRequest request = as("one", "main");
    const auto report = persist([&] { return commit(*store, "a", epoch, request); }).value();
    ended = steps < fail_at;
    EXPECT_EQ(pull(*store, report.version.id).value(), model.by_name()) << "step " << step;
    EXPECT_EQ(store->versions().heads().size(), 1u);
  }
  EXPECT_GT(step, 30u);
}

}  // namespace
}  // namespace weft::store_test
