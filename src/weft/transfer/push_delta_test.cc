// Pushes against a base: as deltas, and in full where those are refused.

#include <algorithm>
#include <memory>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/transfer/delta_publisher.h"
#include "weft/transfer/internal/blocks_body.h"
#include "weft/transfer/publisher.h"
#include "weft/transfer/transfer_fixture.h"

namespace weft {
namespace {

using namespace transfer_test;
using namespace std::chrono_literals;
using Fault = CuttingRelay::Fault;

std::uint64_t bytes_of(const PushReport& report, Encoding encoding) {
  return report.payload_bytes.at(static_cast<std::size_t>(encoding));
}

// Tensors, and what they are when they are pushed as changes of others.
struct Based {
  explicit Based(const Tensors& base) : tensors(base) {
    source = std::make_unique<MemorySource>(MemorySource::create(tensors.views()).value());
  }
  PushOptions options(const std::string& id) const {
    PushOptions options;
    options.base = id;
    options.base_source = source.get();
    options.first_wait = 5ms;
    options.connections = 1;
    return options;
  }

  Tensors tensors;
  std::unique_ptr<MemorySource> source;
};

TEST(DeltaPush, SendsWhatChangedAndNoMore) {
  Bench bench;
  const auto next = changed(bench.first());
  const Based base(bench.first());
  const std::string id = bench.current().id;

  const auto report = blocking_push(bench.client(), next.views(), base.options(id));

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_EQ(report->base, id);
  EXPECT_EQ(report->fell_back, 0u);
  const std::uint64_t elements = report->total_bytes / 500;
  EXPECT_GT(bytes_of(*report, Encoding::kDelta), 0u);
  EXPECT_EQ(bytes_of(*report, Encoding::kSparse), 0u);
  EXPECT_LT(report->sent_bytes, elements * 3 / 2);
}

TEST(DeltaPush, OfWhatHasLittleInCommonIsNeverLongerThanTheBlocks) {
  Bench bench;
  const auto next = random_tensors(bench.model(), 2);
  const Based base(bench.first());

  const auto report = blocking_push(bench.client(), next.views(), base.options(bench.current().id));

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.served(), next.bytes());
  const auto& bytes = report->payload_bytes;
  EXPECT_LE(std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}), report->total_bytes);
}

TEST(DeltaPush, GoesInFullWhereWhatIsAtHandIsNotTheBase) {
  for (const bool is_wrong_everywhere : {false, true}) {
    Bench bench;
    const auto next = changed(bench.first());
    auto wrong = bench.first();
    if (is_wrong_everywhere) {
      wrong = random_tensors(bench.model(), 9);
    } else {
      wrong.data[wrong.find("lm_head.weight")][0] ^= std::byte{4};
    }
    const Based base(wrong);

    const auto report =
        blocking_push(bench.client(), next.views(), base.options(bench.current().id));

    ASSERT_TRUE(report) << report.error().message();
    EXPECT_EQ(bench.served(), next.bytes());
    if (!is_wrong_everywhere) {
      EXPECT_EQ(report->fell_back, 1u);
      EXPECT_LT(report->sent_bytes, report->total_bytes / 10);
    }
  }
}

TEST(DeltaPush, ADeltaThatBreaksOnTheWayIsSentInFull) {
  Bench bench;
  const auto next = changed(bench.first());
  const Based base(bench.first());
  CuttingRelay relay(bench.port(), {5'000}, Fault::kFlipRequests);
  const auto client = client_of(relay.port());

  const auto report = blocking_push(*client, next.views(), base.options(bench.current().id));

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_EQ(report->fell_back, 1u);
  EXPECT_GT(bytes_of(*report, Encoding::kIdentity), 0u);
}

TEST(DeltaPush, GoesOnAfterCuts) {
  Bench bench;
  const auto next = changed(bench.first(), 50);
  const Based base(bench.first());
  CuttingRelay relay(bench.port(), {2'000, 4'000, 50'000, 150'000});
  const auto client = client_of(relay.port());

  const auto report = blocking_push(*client, next.views(), base.options(bench.current().id));

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_GT(report->resumed, 0u);
  EXPECT_EQ(report->fell_back, 0u);
}

TEST(DeltaPush, ToAReceiverThatPatchesIsSentAgainAsADelta) {
  ReceiverOptions options;
  options.commit_mode = CommitMode::kPatch;
  Bench bench(large_model(), options);
  const auto next = changed(bench.first());
  const Based base(bench.first());
  CuttingRelay relay(bench.port(), {5'000}, Fault::kFlipRequests);
  const auto client = client_of(relay.port());

  const auto report = blocking_push(*client, next.views(), base.options(bench.current().id));

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_EQ(report->fell_back, 0u);
  EXPECT_EQ(bytes_of(*report, Encoding::kIdentity), 0u);
}

TEST(DeltaPush, ABaseThatWasConvertedMeansInFull) {
  Bench bench(small_model());
  auto next = bench.first();
  const std::size_t norm = next.find("model.norm.weight");
  next.specs[norm].dtype = DType::kBF16;
  next.data[norm].assign(32, std::byte{0x3f});
  const auto first = blocking_push(bench.client(), next.views(), {});
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_TRUE(first->converted);
  const Based base(next);
  const auto after = changed(next);

  const auto report = blocking_push(bench.client(), after.views(), base.options(first->id));

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->base, "");
  EXPECT_EQ(bytes_of(*report, Encoding::kDelta), 0u);
}

// A model that ties its head to the embedding, pushed with both.
TEST(DeltaPush, ATiedHeadGoesWithItsTwin) {
  auto tied_model = small_model();
  std::erase_if(tied_model, [](const TensorSpec& spec) { return spec.name == "lm_head.weight"; });
  ReceiverOptions options;
  options.tied_embeddings = true;
  Bench bench(tied_model, options);
  const auto with_head = [](Tensors tensors) {
    tensors.data[tensors.find("lm_head.weight")] =
        tensors.data[tensors.find("model.embed_tokens.weight")];
    return tensors;
  };
  const auto first = with_head(random_tensors(small_model(), 5));
  const std::string id = blocking_push(bench.client(), first.views(), {}).value().id;
  const Based base(first);
  const auto next = with_head(changed(first));
  for (const Announce announce : {Announce::kAlways, Announce::kNever}) {
    auto how = base.options(id);
    how.announce = announce;

    const auto report = blocking_push(bench.client(), next.views(), how);

    ASSERT_TRUE(report) << report.error().message();
    if (announce == Announce::kAlways) {
      EXPECT_EQ(report->fell_back, 0u);
      EXPECT_EQ(bytes_of(*report, Encoding::kIdentity), 0u);
    }
    ASSERT_TRUE(blocking_push(bench.client(), first.views(), {}));
  }
}

TEST(DeltaPush, ABaseThatCannotBeReadMeansInFull) {
  class Unreadable final : public TensorSource {
   public:
    explicit Unreadable(const Tensors& tensors) : tensors_(tensors) {}
    const std::vector<TensorSpec>& tensors() const override { return tensors_.specs; }
    const std::vector<OfferedFile>& files() const override { return none_; }
    Result<std::span<const std::byte>> blocking_read(std::size_t, std::uint64_t,
                                                     std::span<std::byte>) const override {
      return Error(ErrorCode::kCorrupt, "the disk is broken");
    }

   private:
    const Tensors& tensors_;
    const std::vector<OfferedFile> none_;
  };
  Bench bench;
  const auto next = changed(bench.first());
  const auto first = bench.first();
  const Unreadable source(first);
  PushOptions options;
  options.base = bench.current().id;
  options.base_source = &source;

  const auto report = blocking_push(bench.client(), next.views(), options);

  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(bench.served(), next.bytes());
}

TEST(ShortBodies, AreSparseForAServerThatKnowsNoDeltas) {
  const auto base = random_tensors(small_model(), 1);
  const auto next = changed(base);
  const auto source = MemorySource::create(next.views()).value();
  const internal::BlocksFrom from{&source, entry_sizes(source).value()};
  internal::Shorthand shorthand;
  shorthand.read_base = [&](const BlockPlace& place, std::span<std::byte>) {
    return std::optional<std::span<const std::byte>>(base.data[place.entry]);
  };
  const std::vector<BlockPlace> places{{0, 0}};
  for (const bool delta : {false, true}) {
    shorthand.delta = delta;

    const auto body = internal::ShortBody::blocking_make(from, shorthand, places).value();

    EXPECT_EQ(body.payload_bytes()[2] > 0, !delta);
    EXPECT_EQ(body.payload_bytes()[3] > 0, delta);
    EXPECT_THAT(body.based(), testing::ElementsAre(BlockPlace{0, 0}));
  }
}

TEST(DeltaPublishers, SendEachVersionAsWhatChangedSinceTheLast) {
  Bench first, second;
  DeltaPublisher publisher({&first.client(), &second.client()});
  auto tensors = random_tensors(first.model(), 3);
  for (unsigned step = 0; step < 3; ++step) {
    tensors = changed(tensors, 500 + step);
    const auto live = tensors;

    const auto results = publisher.blocking_publish(live.views(), {});

    ASSERT_EQ(results.size(), 2u);
    for (const auto& result : results) {
      ASSERT_TRUE(result) << result.error().message();
      EXPECT_EQ(bytes_of(*result, Encoding::kDelta) > 0, step > 0);
      EXPECT_EQ(bytes_of(*result, Encoding::kIdentity) > 0, step == 0);
    }
    EXPECT_EQ(first.served(), tensors.bytes());
    EXPECT_EQ(second.served(), tensors.bytes());
  }
  EXPECT_EQ(publisher.kept_bytes(),
            publisher.blocking_publish(tensors.views(), {})[0]->total_bytes);
}

TEST(DeltaPublishers, SendInFullWhatAServerDoesNotServeAnyMore) {
  Bench bench;
  DeltaPublisher publisher({&bench.client()});
  const auto one = random_tensors(bench.model(), 3);
  ASSERT_TRUE(publisher.blocking_publish(one.views(), {})[0]);
  ASSERT_TRUE(blocking_push(bench.client(), random_tensors(bench.model(), 8).views(), {}));
  const auto two = changed(one);

  const auto result = publisher.blocking_publish(two.views(), {})[0];

  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->base, "");
  EXPECT_EQ(bench.served(), two.bytes());
}

TEST(DeltaPublishers, KeepNoMoreThanTheyMay) {
  Bench bench;
  DeltaPublisher publisher({&bench.client()}, 5'000);
  auto tensors = random_tensors(bench.model(), 3);
  ASSERT_TRUE(publisher.blocking_publish(tensors.views(), {})[0]);
  EXPECT_LE(publisher.kept_bytes(), 5'000u);
  EXPECT_GT(publisher.kept_bytes(), 0u);
  tensors = changed(tensors);

  const auto result = publisher.blocking_publish(tensors.views(), {})[0];

  ASSERT_TRUE(result) << result.error().message();
  EXPECT_GT(bytes_of(*result, Encoding::kDelta), 0u);
  EXPECT_GE(bytes_of(*result, Encoding::kIdentity), 2 * kBlockBytes)
      << "the large tensor does not fit";
  EXPECT_EQ(bench.served(), tensors.bytes());
}

}  // namespace
}  // namespace weft
