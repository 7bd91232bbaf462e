#include "weft/protocol/delta_plan.h"

#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TransferOffer full(std::string id, std::uint64_t bytes) {
  return {std::move(id), std::nullopt, bytes};
}
TransferOffer delta(std::string base, std::string id, std::uint64_t bytes) {
  return {std::move(id), std::move(base), bytes};
}

TEST(DeltaPlan, TakesNothingForWhatIsAtHand) {
  const std::vector<TransferOffer> offers = {full("a", 1)};
  const auto plan = try_plan_transfer(offers, {"a"}, "a");
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->steps, IsEmpty());
  EXPECT_EQ(plan->bytes, 0u);
  EXPECT_TRUE(try_plan_transfer({}, {"a"}, "a"));
}

TEST(DeltaPlan, TakesTheCheapestOfDeltaChainAndFull) {
  std::vector<TransferOffer> offers = {full("c", 100), delta("a", "b", 10), delta("b", "c", 10),
                                       delta("a", "c", 30)};
  EXPECT_THAT(try_plan_transfer(offers, {"a"}, "c")->steps, ElementsAre(1, 2));
  offers[3].bytes = 15;
  EXPECT_THAT(try_plan_transfer(offers, {"a"}, "c")->steps, ElementsAre(3));
  EXPECT_THAT(try_plan_transfer(offers, {"b", "a"}, "c")->steps, ElementsAre(2));
  EXPECT_THAT(try_plan_transfer(offers, {}, "c")->steps, ElementsAre(0));
  offers[0].bytes = 5;
  EXPECT_THAT(try_plan_transfer(offers, {"a"}, "c")->steps, ElementsAre(0));
}

TEST(DeltaPlan, OfEquallyManyBytesTakesFewerSteps) {
  const std::vector<TransferOffer> offers = {delta("a", "b", 10), delta("b", "c", 10),
                                             delta("a", "c", 20), full("c", 20)};
  EXPECT_EQ(try_plan_transfer(offers, {"a"}, "c")->steps.size(), 1u);
}

TEST(DeltaPlan, AWholeVersionMayBeTheBaseOfDeltas) {
  const std::vector<TransferOffer> offers = {full("c", 100), full("a", 20), delta("a", "c", 5)};
  EXPECT_THAT(try_plan_transfer(offers, {}, "c")->steps, ElementsAre(1, 2));
}

TEST(DeltaPlan, HolesLoopsAndStrangersAreNoWay) {
  const std::vector<TransferOffer> offers = {delta("a", "a", 0), delta("b", "c", 1),
                                             delta("c", "b", 1), delta("x", "y", 1)};
  EXPECT_FALSE(try_plan_transfer(offers, {"a", "nobody"}, "c"));
  EXPECT_FALSE(try_plan_transfer(offers, {"a"}, "unknown"));
  EXPECT_FALSE(try_plan_transfer(offers, {"a"}, ""));
  EXPECT_THAT(try_plan_transfer(offers, {"b"}, "c")->steps, ElementsAre(1));
}

TEST(DeltaPlan, SumsThatDoNotFitAreTheMost) {
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  const std::vector<TransferOffer> offers = {delta("a", "b", kMost - 1), delta("b", "c", 5)};
  EXPECT_EQ(try_plan_transfer(offers, {"a"}, "c")->bytes, kMost);
}

// All ways without a loop.
struct BruteForce {
  const std::vector<TransferOffer>& offers;
  const std::string want;
  std::optional<std::pair<std::uint64_t, std::size_t>> best{};

  void go(std::set<std::string> seen, const std::string& at, std::uint64_t bytes,
          std::size_t steps) {
    if (at == want) {
      const std::pair cost(bytes, steps);
      if (!best || cost < *best) best = cost;
      return;
    }
    seen.insert(at);
    for (const TransferOffer& offer : offers) {
      if (offer.base.value_or("") != at || seen.contains(offer.id)) continue;
      go(seen, offer.id, bytes + offer.bytes, steps + 1);
    }
  }
};

TEST(DeltaPlan, IsAsGoodAsTryingAllWays) {
  std::mt19937 random(6);
  for (int round = 0; round < 3000; ++round) {
    const auto name = [&] { return std::string(1, static_cast<char>('a' + random() % 6)); };
    std::vector<TransferOffer> offers(random() % 12);
    for (TransferOffer& offer : offers) {
      offer.id = name();
      if (random() % 4 != 0) offer.base = name();
      offer.bytes = random() % 6;
    }
    std::set<std::string> have;
    for (auto i = random() % 3; i > 0; --i) have.insert(name());
    BruteForce brute{offers, name()};
    brute.go({}, "", 0, 0);
    for (const std::string& id : have) brute.go({}, id, 0, 0);

    const auto plan = try_plan_transfer(offers, have, brute.want);

    ASSERT_EQ(plan.has_value(), brute.best.has_value()) << round;
    if (!plan) continue;
    EXPECT_EQ(std::pair(plan->bytes, plan->steps.size()), *brute.best) << round;
    std::string at;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < plan->steps.size(); ++i) {
      const TransferOffer& offer = offers[plan->steps[i]];
      if (i == 0) {
        ASSERT_TRUE(!offer.base || have.contains(*offer.base));
      } else {
        ASSERT_EQ(offer.base, at);
      }
      at = offer.id;
      bytes += offer.bytes;
    }
    EXPECT_EQ(bytes, plan->bytes);
    EXPECT_TRUE(plan->steps.empty() ? have.contains(brute.want) : at == brute.want);
  }
}

}  // namespace
}  // namespace weft
