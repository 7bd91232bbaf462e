// Both ends together: blocking_push against a receiver over real sockets.

#include <algorithm>
#include <atomic>
#include <thread>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "weft/protocol/block_frame.h"
#include "weft/transfer/publisher.h"
#include "weft/transfer/transfer_fixture.h"

namespace weft {
namespace {

using namespace transfer_test;
using namespace std::chrono_literals;

TEST(Push, ReplacesWhatIsServed) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 2);

  const auto report = blocking_push(bench.client(), next.views(), {.label = "step-1"});

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_EQ(bench.current().id, report->id);
  EXPECT_EQ(bench.current().label, "step-1");
  EXPECT_FALSE(bench.current().converted);
  EXPECT_EQ(report->skipped_bytes, 0u);
}

TEST(Push, SendsOnlyTheBlocksThatChanged) {
  Bench bench;
  auto next = random_tensors(bench.model(), 1);  // as served
  Bytes& large = next.data[next.find("model.large.weight")];
  large[kBlockBytes + 1] ^= std::byte{1};

  const auto report = blocking_push(bench.client(), next.views(), {});

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_EQ(report->sent_bytes, kBlockBytes + kBlockFrameBytes);
  EXPECT_EQ(report->skipped_bytes, report->total_bytes - kBlockBytes);
  EXPECT_EQ(bench.current().label, "default");
}

TEST(Push, CutConnectionsAreTakenUpFromWhatIsMissing) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 3);
  CuttingRelay relay(bench.port(), {5'000, 1'000'000, 9'000'000, 700, 8'388'700});
  const auto client = client_of(relay.port());

  const auto report =
      blocking_push(*client, next.views(), {.label = "step-1", .retries = 20, .first_wait = 5ms});

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_GT(report->resumed, 0u);
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_EQ(bench.target().commits(), 1u);
}

TEST(Push, ReportsProgressUpToTheWhole) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 4);
  std::uint64_t last = 0, total = 0;
  PushOptions options;
  options.progress = [&](std::uint64_t done_bytes, std::uint64_t total_bytes) {
    EXPECT_GE(done_bytes, last);
    last = done_bytes;
    total = total_bytes;
  };

  ASSERT_TRUE(blocking_push(bench.client(), next.views(), options));

  EXPECT_EQ(last, total);
}

TEST(Push, WithoutCommitLeavesItStagedForTheControlCalls) {
  Bench bench;
  const auto before = bench.served();
  const auto next = random_tensors(bench.model(), 5);
  ASSERT_TRUE(blocking_result([&](auto done) { bench.receiver().start_update("t", done); }));

  ASSERT_TRUE(blocking_push(bench.client(), next.views(), {.session = "t", .commit = false}));
  EXPECT_EQ(bench.served(), before);
  EXPECT_EQ(bench.state(), "staged");

  EXPECT_TRUE(
      blocking_result([&](auto done) { bench.receiver().update("t", std::nullopt, done); }));
  EXPECT_TRUE(
      blocking_result([&](auto done) { bench.receiver().finish_update("t", "step-9", done); }));
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_EQ(bench.current().label, "step-9");
}

TEST(Push, ANewVersionOfTheSameSessionReplacesOneThatWasLeft) {
  Bench bench;
  const auto left = random_tensors(bench.model(), 6);
  const auto next = random_tensors(bench.model(), 7);
  ASSERT_TRUE(blocking_push(bench.client(), left.views(), {.session = "t", .commit = false}));

  ASSERT_TRUE(blocking_push(bench.client(), next.views(), {.session = "t"}));

  EXPECT_EQ(bench.served(), next.bytes());
}

TEST(Push, IsToldWhatTheServerDoesNotTake) {
  Bench bench;
  const auto before = bench.served();
  auto next = random_tensors(bench.model(), 8);
  next.specs[next.find("model.norm.weight")].name = "model.nrom.weight";

  const auto report = blocking_push(bench.client(), next.views(), {});

  EXPECT_EQ(report.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(report.error().message().find("model.nrom.weight"), std::string::npos);
  EXPECT_EQ(bench.served(), before);
  EXPECT_EQ(bench.state(), "idle");
}

TEST(Push, ToNobodyFailsAsDisconnected) {
  std::uint16_t port = 0;
  {
    Bench bench(small_model());
    port = bench.port();
  }
  const auto client = client_of(port);

  const auto report = blocking_push(*client, random_tensors(small_model(), 1).views(),
                                    {.retries = 1, .first_wait = 5ms});

  EXPECT_EQ(report.error().code(), ErrorCode::kDisconnected);
}

TEST(Push, RefusesDataThatDoesNotFitItsShape) {
  Bench bench(small_model());
  auto next = random_tensors(small_model(), 1);
  next.data[0].pop_back();

  EXPECT_EQ(blocking_push(bench.client(), next.views(), {}).error().code(),
            ErrorCode::kInvalidArgument);
}

// A reader that looks at all weights in each step, as a forward pass does, while versions come in.
TEST(Push, NoStepSeesTwoVersions) {
  Bench bench;
  std::atomic<bool> stop{false};
  std::atomic<unsigned> steps{0};
  std::thread reader([&] {
    while (!stop) {
      bench.target().run_step([&](const WeightSet& set, const VersionName& version) {
        if (version.label == "default") return;
        const auto fill = static_cast<std::byte>(std::stoi(version.label));
        for (std::size_t i = 0; i < set.layout().tensors().size(); ++i) {
          const auto tensor = set.tensor(i);
          ASSERT_TRUE(std::ranges::all_of(tensor, [&](std::byte byte) { return byte == fill; }))
              << set.layout().tensors()[i].name << " under version " << version.label;
        }
        ++steps;
      });
      // Else it may have the target's lock again before a commit that waits for it is awake.
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });

  for (int version = 1; version <= 6; ++version) {
    const auto next = filled_tensors(bench.model(), static_cast<std::byte>(version));
    EXPECT_TRUE(blocking_push(bench.client(), next.views(), {.label = std::to_string(version)}));
  }

  while (steps == 0) std::this_thread::yield();
  stop = true;
  reader.join();
  EXPECT_EQ(bench.target().commits(), 6u);
}

TEST(Push, TheIdDoesNotDependOnHowTheBytesCame) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 9);
  auto reversed = next;
  std::ranges::reverse(reversed.specs);
  std::ranges::reverse(reversed.data);

  const auto id = blocking_push(bench.client(), next.views(), {}).value().id;
  ASSERT_TRUE(blocking_push(bench.client(), random_tensors(bench.model(), 10).views(), {}));
  const auto id_reversed = blocking_push(bench.client(), reversed.views(), {}).value().id;
  const auto in_one_body = bench.call("PUT", "/weft/v1/weights", next.file());
  const auto in_other_order = bench.call("PUT", "/weft/v1/weights", reversed.file());

  EXPECT_EQ(id_reversed, id);
  EXPECT_EQ(member(in_one_body.body, "id"), id);
  EXPECT_EQ(member(in_other_order.body, "id"), id);
  EXPECT_EQ(bench.served(), next.bytes());
}

TEST(Push, ConvertsFloatsOnceAndMarksTheVersion) {
  Bench bench(small_model());
  auto next = random_tensors(small_model(), 11);
  const std::size_t k = next.find("model.k_proj.weight");
  next.specs[k].dtype = DType::kF32;
  // 1 + 2^-8 and 1 + 3 * 2^-8 lie halfway between two bf16 values: to the even one.
  next.data[k] = Bytes(8 * 16 * 4, std::byte{0});
  const std::array<std::uint8_t, 8> ties{0x00, 0x80, 0x80, 0x3f, 0x00, 0x80, 0x81, 0x3f};
  std::ranges::transform(ties, next.data[k].begin(),
                         [](std::uint8_t byte) { return std::byte{byte}; });

  const auto report = blocking_push(bench.client(), next.views(), {});

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(bench.current().converted);
  const Bytes served = bench.served()["model.k_proj.weight"];
  const std::array<std::uint8_t, 4> rounded{0x80, 0x3f, 0x82, 0x3f};
  EXPECT_TRUE(std::ranges::equal(rounded, std::span(served).first(4), {}, {}, [](std::byte byte) {
    return std::to_integer<std::uint8_t>(byte);
  }));
  // What is served is not what was sent, so nothing of it is taken over.
  EXPECT_EQ(blocking_push(bench.client(), next.views(), {}).value().skipped_bytes, 0u);
}

TEST(Push, DropsWhatWrappersAddToNames) {
  Bench bench(small_model());
  auto next = random_tensors(small_model(), 12);
  const auto expected = next.bytes();
  for (TensorSpec& spec : next.specs) spec.name = "module._orig_mod." + spec.name;

  ASSERT_TRUE(blocking_push(bench.client(), next.views(), {}));

  EXPECT_EQ(bench.served(), expected);
}

}  // namespace
}  // namespace weft
