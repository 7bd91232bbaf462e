#include "weft/protocol/pull_machine.h"

#include <cstring>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Step = PullMachine::Step;
using Fetch = PullMachine::Fetch;
using Options = PullMachine::Options;

// Of zeros: five bytes, nothing, and nine blocks; the seventh of these is cut by the end of pack 0.
struct Version {
  Manifest manifest;
  std::string json, id, list;
  std::vector<Digest> digests;

  Version() {
    const std::vector<std::byte> zeros(kBlockBytes);
    for (const auto& [name, size] :
         {std::pair("a", std::uint64_t{5}), {"b", 0}, {"c", 9 * kBlockBytes}}) {
      const std::size_t first = digests.size();
      for (std::uint64_t block = 0; block < block_count(size); ++block) {
        const auto length = static_cast<std::size_t>(block_length(size, block));
        digests.push_back(block_digest(size, block, std::span(zeros).first(length)));
      }
      manifest.tensors.push_back(
          {{name, DType::kU8, {size}}, merge_block_digests(std::span(digests).subspan(first))});
    }
    json = manifest_json(manifest);
    id = manifest_id(manifest);
    list.resize(digests.size() * sizeof(Digest));
    std::memcpy(list.data(), digests.data(), list.size());
  }
};
const Version& version() {
  static const Version version;
  return version;
}
constexpr std::uint64_t kTotal = 9 * kBlockBytes + 5;

Error error(ErrorCode code) {
  return {code, "told"};
}

PullMachine at_fetch(Options options = {}) {
  PullMachine machine(version().id, options);
  machine.manifest(version().json);
  machine.blocks(version().list);
  return machine;
}

Digest digest_at(const BlockPlace& place) {
  return version().digests[place.entry == 0 ? 0 : 1 + place.block];
}

// All of a fetch comes and is right.
void receive(PullMachine& machine, const Fetch& fetch) {
  for (const auto& piece : fetch.pieces) {
    if (machine.arrived(piece)) {
      EXPECT_TRUE(machine.checked(piece.place, digest_at(piece.place)));
    }
  }
  machine.fetched(fetch, {});
}

void receive_rest(PullMachine& machine) {
  while (machine.step() == Step::kFetch) {
    const auto fetch = machine.take();
    ASSERT_TRUE(fetch);
    receive(machine, *fetch);
  }
}

TEST(PullMachine, FetchesWholePacksAndPutsACutBlockTogether) {
  PullMachine machine = at_fetch();

  const auto first = machine.take();
  const auto second = machine.take();
  EXPECT_FALSE(machine.take());
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(first->is_all && second->is_all);
  EXPECT_EQ(first->size_bytes, kPackBytes);
  EXPECT_EQ(second->size_bytes, kTotal - kPackBytes);
  EXPECT_THAT(first->pieces, SizeIs(9));
  const PullMachine::Piece& cut = first->pieces.back();
  EXPECT_FALSE(cut.is_whole);
  EXPECT_EQ(cut.place, (BlockPlace{2, 7}));
  EXPECT_EQ(cut.place, second->pieces.front().place);
  EXPECT_EQ(cut.size_bytes + second->pieces.front().size_bytes, kBlockBytes);

  receive(machine, *second);
  EXPECT_EQ(machine.verified_bytes(), kBlockBytes);
  receive(machine, *first);

  EXPECT_EQ(machine.step(), Step::kDone);
  EXPECT_EQ(machine.verified_bytes(), kTotal);
}

TEST(PullMachine, WhatIsHeldIsNotFetched) {
  PullMachine machine = at_fetch();
  for (std::uint32_t block = 1; block < 9; ++block) machine.hold({2, block});
  machine.hold({2, 1});

  const auto fetch = machine.take();

  ASSERT_TRUE(fetch);
  EXPECT_EQ(fetch->size_bytes, 5 + kBlockBytes);
  EXPECT_FALSE(fetch->is_all);
  receive(machine, *fetch);
  EXPECT_EQ(machine.step(), Step::kDone);
  EXPECT_EQ(machine.held_bytes(), 8 * kBlockBytes);
}

TEST(PullMachine, IsDoneWhenAllIsHeld) {
  PullMachine machine = at_fetch();
  machine.hold({0, 0});
  for (std::uint32_t block = 0; block < 9; ++block) machine.hold({2, block});
  EXPECT_EQ(machine.step(), Step::kDone);
}

TEST(PullMachine, AnEmptyVersionIsDoneWithItsBlockList) {
  const Manifest empty;
  PullMachine machine(manifest_id(empty), {});
  machine.manifest(manifest_json(empty));
  machine.blocks(std::string());
  EXPECT_EQ(machine.step(), Step::kDone);
}

TEST(PullMachine, AManifestOfAnotherIdIsAskedForElsewhere) {
  PullMachine machine(version().id, {.retries = 1, .sources = 2});
  machine.manifest(manifest_json({}));
  ASSERT_EQ(machine.step(), Step::kWait);
  machine.waited();
  EXPECT_EQ(machine.step(), Step::kManifest);
  EXPECT_EQ(machine.source(), 1u);
  machine.manifest(manifest_json({}));
  EXPECT_EQ(machine.step(), Step::kFailed);
  EXPECT_EQ(machine.error().code(), ErrorCode::kCorrupt);
}

TEST(PullMachine, ABlockListThatDoesNotFitTheManifestIsRefused) {
  for (const bool shorter : {true, false}) {
    std::string list = version().list;
    shorter ? list.pop_back() : static_cast<void>(list[40] = static_cast<char>(list[40] ^ 1));
    PullMachine machine(version().id, {.retries = 0});
    machine.manifest(version().json);
    machine.blocks(list);
    ASSERT_EQ(machine.step(), Step::kFailed);
    EXPECT_EQ(machine.error().code(), ErrorCode::kCorrupt);
  }
}

// Every code, at each step: "retry" after a wait, or "fail" since the only source cannot help.
TEST(PullMachine, EveryRefusalAtEveryStep) {
  for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    const bool passes = code == ErrorCode::kDisconnected || code == ErrorCode::kDeadline ||
                        code == ErrorCode::kOverloaded || code == ErrorCode::kCorrupt;
    const Step expected = passes ? Step::kWait : Step::kFailed;
    PullMachine first(version().id, {});
    first.manifest(error(code));
    EXPECT_EQ(first.step(), expected) << i;
    PullMachine second(version().id, {});
    second.manifest(version().json);
    second.blocks(error(code));
    EXPECT_EQ(second.step(), expected) << i;
    PullMachine third = at_fetch();
    third.fetched(*third.take(), error(code));
    EXPECT_EQ(third.step(), expected) << i;
    if (!passes) continue;
    third.waited();
    EXPECT_EQ(third.step(), Step::kFetch);
    receive_rest(third);
    EXPECT_EQ(third.step(), Step::kDone);
  }
}

TEST(PullMachine, ASourceThatLostTheVersionIsLeftForAnother) {
  PullMachine machine = at_fetch({.sources = 2});
  machine.fetched(*machine.take(), error(ErrorCode::kNotFound));
  machine.waited();

  const auto fetch = machine.take();

  EXPECT_EQ(fetch->source, 1u);
  machine.fetched(*fetch, error(ErrorCode::kDisconnected));
  machine.waited();
  EXPECT_EQ(machine.take()->source, 1u);
}

TEST(PullMachine, ACutFetchKeepsWhatCame) {
  PullMachine machine = at_fetch();
  const Fetch first = *machine.take();
  const Fetch second = *machine.take();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(machine.arrived(first.pieces[i]));
    machine.checked(first.pieces[i].place, digest_at(first.pieces[i].place));
  }
  machine.fetched(first, error(ErrorCode::kDisconnected));
  EXPECT_EQ(machine.step(), Step::kFetch);
  EXPECT_FALSE(machine.take()) << "a round ends before the next begins";
  receive(machine, second);
  ASSERT_EQ(machine.step(), Step::kWait);
  EXPECT_EQ(machine.wait(), milliseconds(100));
  machine.waited();

  const auto rest = machine.take();

  EXPECT_EQ(rest->begin_bytes, 5 + kBlockBytes);
  EXPECT_EQ(rest->size_bytes, kPackBytes - 5 - kBlockBytes);
  receive(machine, *rest);
  EXPECT_EQ(machine.step(), Step::kDone);
  EXPECT_EQ(machine.resumed(), 1u);
}

TEST(PullMachine, OnlyRoundsThatBringNothingAreCounted) {
  PullMachine machine = at_fetch({.retries = 1});
  for (int i = 0; i < 4; ++i) {
    const Fetch fetch = *machine.take();
    machine.arrived(fetch.pieces[0]);
    machine.checked(fetch.pieces[0].place, digest_at(fetch.pieces[0].place));
    machine.fetched(fetch, error(ErrorCode::kDeadline));
    ASSERT_EQ(machine.step(), Step::kWait);
    machine.waited();
  }
  machine.fetched(*machine.take(), error(ErrorCode::kDeadline));
  EXPECT_EQ(machine.step(), Step::kFailed);
}

TEST(PullMachine, RetryAfterIsFollowedAndBoundedByPatience) {
  PullMachine machine(version().id, {.retries = 0, .patience = seconds(60)});
  machine.manifest(error(ErrorCode::kOverloaded), seconds(60));
  ASSERT_EQ(machine.step(), Step::kWait);
  EXPECT_EQ(machine.wait(), seconds(60));
  machine.waited();
  machine.manifest(error(ErrorCode::kOverloaded), seconds(1));
  EXPECT_EQ(machine.step(), Step::kFailed);
}

TEST(PullMachine, AWrongBlockIsFetchedByItsDigestThenFromAPackAndSoOn) {
  PullMachine machine = at_fetch({.sources = 3, .corrupt_limit = 3});
  const Fetch first = *machine.take();
  const BlockPlace bad{2, 1};
  for (const auto& piece : first.pieces) {
    if (!machine.arrived(piece)) continue;
    const bool right = piece.place != bad;
    EXPECT_EQ(machine.checked(piece.place, right ? digest_at(piece.place) : Digest{}), right);
  }
  machine.fetched(first, {});
  for (const unsigned wrong : {1u, 2u, 3u}) {
    const Fetch again = *machine.take();
    EXPECT_EQ(again.by_digest, wrong % 2 == 1);
    EXPECT_EQ(again.source, wrong % 3);
    EXPECT_EQ(again.size_bytes, kBlockBytes);
    EXPECT_EQ(again.begin_bytes, again.by_digest ? kBlockBytes : kBlockBytes + 5);
    ASSERT_TRUE(machine.arrived(again.pieces[0]));
    EXPECT_FALSE(machine.checked(bad, Digest{}));
    machine.fetched(again, {});
  }
  ASSERT_EQ(machine.step(), Step::kFailed);
  EXPECT_EQ(machine.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(machine.error().message(), HasSubstr("c: block 1"));
  EXPECT_EQ(machine.corrupt(), 4u);
}

TEST(PullMachine, ASourceWithoutTheBlobIsAskedForThePackAgain) {
  PullMachine machine = at_fetch();
  const Fetch first = *machine.take();
  ASSERT_TRUE(machine.arrived(first.pieces[0]));
  machine.checked(first.pieces[0].place, Digest{});
  // Another connection has the block before the first fetch ends, which must not open it again.
  const Fetch again = *machine.take();
  EXPECT_TRUE(again.by_digest && again.is_all);
  machine.fetched(first, {});
  const Fetch rest = *machine.take();
  EXPECT_EQ(rest.begin_bytes, 5u);
  machine.fetched(again, error(ErrorCode::kNotFound));

  const Fetch third = *machine.take();

  EXPECT_FALSE(third.by_digest);
  EXPECT_EQ(third.size_bytes, 5u);
  receive(machine, third);
  receive(machine, rest);
  receive_rest(machine);
  EXPECT_EQ(machine.step(), Step::kDone);
}

TEST(PullMachine, GivingUpIsFinal) {
  PullMachine machine = at_fetch();
  machine.give_up(error(ErrorCode::kNoSpace));
  EXPECT_EQ(machine.step(), Step::kFailed);
  EXPECT_EQ(machine.error().code(), ErrorCode::kNoSpace);
}

}  // namespace
}  // namespace weft
