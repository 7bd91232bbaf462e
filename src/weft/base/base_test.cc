#include <filesystem>
#include <future>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "weft/base/file.h"
#include "weft/base/guarded.h"
#include "weft/base/job_thread.h"
#include "weft/base/result.h"
#include "weft/testing/temporary_dir.h"

namespace weft {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return Error(ErrorCode::kInvalidArgument, "odd");
  return x / 2;
}

Result<int> quarter(int x) {
  WEFT_TRY(const int once, half(x));
  WEFT_TRY(const int twice, half(once));
  return twice;
}

TEST(Result, TryPassesValuesAndReturnsErrors) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).error().message(), "odd");
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> made = std::make_unique<int>(7);

  EXPECT_EQ(*std::move(made).value(), 7);
}

TEST(ErrorTraits, EveryCodeHasANameOfItsOwnAndAStatus) {
  std::set<std::string> names;
  std::set<int> statuses;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    const ErrorTraits& traits = error_traits(static_cast<ErrorCode>(code));
    EXPECT_TRUE(names.insert(traits.name).second) << traits.name;
    EXPECT_TRUE(statuses.insert(traits.http_status).second) << traits.name;
    EXPECT_EQ(code_of_http_status(traits.http_status), static_cast<ErrorCode>(code));
    EXPECT_GT(traits.exit_status, 0);
  }
}

TEST(Error, ContextGoesInFront) {
  EXPECT_EQ(Error(ErrorCode::kCorrupt, "short").with_context("a.bin").message(), "a.bin: short");
}

TEST(File, WritesWholeAndReadsBack) {
  const TemporaryDir dir;

  ASSERT_TRUE(blocking_write_file(dir / "a", "hello").has_value());

  EXPECT_EQ(blocking_read_file(dir / "a").value(), "hello");
  EXPECT_EQ(blocking_read_file(dir / "a", 4).error().code(), ErrorCode::kTooLarge);
  EXPECT_EQ(blocking_read_file(dir / "b").error().code(), ErrorCode::kNotFound);
}

TEST(File, OnlyRegularFilesAreOpened) {
  const TemporaryDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);

  EXPECT_EQ(File::open(dir / "fifo").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(File::open(dir.path()).error().code(), ErrorCode::kInvalidArgument);
}

TEST(File, ShrunkAfterOpenIsAnError) {
  const TemporaryDir dir;
  ASSERT_TRUE(blocking_write_file(dir / "a", "hello").has_value());
  const File file = File::open(dir / "a").value();

  std::filesystem::resize_file(dir / "a", 2);

  std::string out(5, '\0');
  EXPECT_EQ(file.blocking_read_at(0, std::as_writable_bytes(std::span(out))).error().code(),
            ErrorCode::kCorrupt);
}

TEST(JobThread, RunsInOrderAndTheNextAfterOneThatThrows) {
  std::vector<int> done;
  JobThread thread("weft-test", JobThread::Rest::kRun);
  thread.post([&] { done.push_back(1); });
  thread.post([] { throw std::runtime_error("on purpose"); });
  thread.post([&] { done.push_back(2); });

  thread.blocking_stop();
  thread.post([&] { done.push_back(3); });
  thread.blocking_stop();

  EXPECT_EQ(done, (std::vector<int>{1, 2}));
}

TEST(JobThread, RunsTimedJobsInTheOrderOfTheirTimes) {
  std::vector<int> done;
  std::promise<void> all;
  JobThread thread("weft-test", JobThread::Rest::kRun);
  const auto now = std::chrono::steady_clock::now();
  thread.post_at(now + std::chrono::milliseconds(2), [&] {
    done.push_back(2);
    all.set_value();
  });
  thread.post_at(now + std::chrono::milliseconds(1), [&] { done.push_back(1); });
  thread.post_at(now + std::chrono::hours(1), [&] { done.push_back(3); });

  all.get_future().wait();
  thread.blocking_stop();

  EXPECT_EQ(done, (std::vector<int>{1, 2}));
}

TEST(JobThread, DropsWhatWaitsWhenItIsToldTo) {
  std::promise<void> begun, go;
  bool second = false;
  JobThread thread("weft-test", JobThread::Rest::kDrop);
  thread.post([&] {
    begun.set_value();
    go.get_future().wait();
  });
  thread.post([&] { second = true; });
  begun.get_future().wait();
  auto stopped = std::async(std::launch::async, [&] { thread.blocking_stop(); });
  // A stopped thread drops what is posted at once, so its captures go: that is how the stop shows.
  while (true) {
    auto held = std::make_shared<int>(0);
    thread.post([held] {});
    if (held.use_count() == 1) break;
  }

  go.set_value();
  stopped.get();

  EXPECT_FALSE(second);
}

TEST(Guarded, ReturnsWhatTheUseReturns) {
  Guarded<int> value(3);

  EXPECT_EQ(value.with([](int& v) { return v += 1; }), 4);
}

}  // namespace
}  // namespace weft
