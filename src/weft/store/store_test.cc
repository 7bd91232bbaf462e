#include "weft/store/store.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/store/store_fixture.h"
#include "weft/testing/temporary_dir.h"

namespace weft::store_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::unique_ptr<Store> open_store(const TemporaryDir& dir, StoreOptions options = {}) {
  return Store::blocking_open(dir / "store", std::move(options)).value();
}

std::vector<std::string> ids(Store& store) {
  std::vector<std::string> all;
  for (const VersionRecord& record : store.versions().versions()) all.push_back(record.id);
  return all;
}

// The objects' files, largest first.
std::vector<fs::path> object_files(const TemporaryDir& dir) {
  std::vector<fs::path> files;
  for (const auto& each : fs::recursive_directory_iterator(dir / "store/objects")) {
    if (each.is_regular_file()) files.push_back(each.path());
  }
  std::ranges::sort(files, std::greater<>(), [](const fs::path& p) { return fs::file_size(p); });
  return files;
}

void flip_byte(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const int byte = file.peek();
  file.seekp(0);
  file.put(static_cast<char>(byte ^ 1));
}

TEST(Store, WhatIsPushedIsPulledBackBitForBit) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  const Model model = random_model(1);

  const auto report = push(*store, model, as("one")).value();

  EXPECT_EQ(pull(*store, report.version.id).value(), model.by_name());
  EXPECT_EQ(report.version.label, "one");
  EXPECT_EQ(report.tensors, 4u);
  const VersionRecord record = store->versions().version(report.version.id).value();
  EXPECT_THAT(record.labels, ElementsAre("one"));
  EXPECT_EQ(record.bytes, report.bytes);
  EXPECT_EQ(record.state, "stored");
}

TEST(Store, RangesOfAnEntryAreRangesOfItsBlocks) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  const Model model = random_model(1);
  const auto data = store->versions().open(push(*store, model).value().version.id).value();
  const Bytes& embedding = model.data[0];
  const std::size_t entry = 1;  // after a.bias
  for (const auto& [offset, size] : std::initializer_list<std::pair<std::size_t, std::size_t>>{
           {0, 1}, {kBlockBytes - 3, 7}, {kBlockBytes, 5}, {embedding.size() - 1, 1}, {9, 0}}) {
    std::vector<http::BodyPart> parts;
    ASSERT_TRUE(data->append(entry, offset, size, parts));
    const auto expected = std::span(embedding).subspan(offset, size);
    EXPECT_EQ(read_parts(parts), Bytes(expected.begin(), expected.end()));
  }
}

TEST(Store, EverythingIsThereAfterARestart) {
  const TemporaryDir dir;
  const Model model = random_model(1);
  auto store = open_store(dir);
  const std::string id = push(*store, model, as("one", "main")).value().version.id;
  ASSERT_TRUE(store->versions().set_pin(id, true));
  const VersionRecord before = store->versions().version(id).value();
  store.reset();

  store = open_store(dir);

  EXPECT_EQ(pull(*store, id).value(), model.by_name());
  const VersionRecord after = store->versions().version(id).value();
  EXPECT_EQ(after.labels, before.labels);
  EXPECT_EQ(after.created_ms, before.created_ms);
  EXPECT_TRUE(after.pinned);
  ASSERT_THAT(store->versions().heads(), SizeIs(1));
  EXPECT_EQ(store->versions().heads()[0].id, id);
}

TEST(Store, AnnouncedBlocksThatAreHereAreNotSentAgain) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  Model model = random_model(1);
  ASSERT_TRUE(push(*store, model));
  model.data[0].back() ^= std::byte{1};

  const auto opened = open_upload(*store, "other", offer_of(model, true)).value();

  ASSERT_THAT(opened.missing, SizeIs(1));
  EXPECT_EQ(opened.missing[0], (BlockLedger::Run{0, 1, 1}));
  const auto id = push(*store, model, {}, true, "other").value().version.id;
  EXPECT_EQ(pull(*store, id).value(), model.by_name());
  // Of five blocks of two versions, four are the same.
  EXPECT_EQ(store->stats().objects, 6u);
}

TEST(Store, BlocksCountOnceTheyAreRightAndNotBefore) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  const Model model = random_model(1);
  const auto epoch = open_upload(*store, "a", offer_of(model, false)).value().epoch;
  Bytes wrong = model.data[1];
  const Digest right = block_digest(wrong.size(), 0, wrong);
  wrong[0] ^= std::byte{1};

  const auto sent = send(*store, epoch, 1, 0, Encoding::kIdentity, wrong, right);
  EXPECT_EQ(sent.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(sent.error().message(), HasSubstr("model.norm.weight, block 0"));
  EXPECT_EQ(seal(*store, "a", epoch).error().code(), ErrorCode::kConflict);
  EXPECT_EQ(send(*store, epoch, 9, 0, Encoding::kIdentity, wrong, right).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(send(*store, epoch, 1, 1, Encoding::kIdentity, wrong, right).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(send(*store, epoch, 1, 0, Encoding::kSparse, wrong, right).error().code(),
            ErrorCode::kInvalidArgument);

  ASSERT_TRUE(send_missing(*store, "a", epoch, model));
  EXPECT_TRUE(seal(*store, "a", epoch));
}

TEST(Store, EncodedBlocksAreDecodedBeforeTheyCount) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  Model model = random_model(1);
  const std::string base = push(*store, model).value().version.id;
  const Bytes old_norm = model.data[1];
  const Bytes old_embedding = model.data[0];
  model.data[1][4] ^= std::byte{1};
  model.data[0][2 * 12345] ^= std::byte{1};
  UploadOffer offer = offer_of(model, true);
  offer.base = base;
  const auto opened = open_upload(*store, "a", offer).value();
  EXPECT_THAT(opened.encodings, ElementsAre(Encoding::kIdentity, Encoding::kZstd, Encoding::kSparse,
                                            Encoding::kDelta));

  EXPECT_TRUE(send(*store, opened.epoch, 1, 0, Encoding::kZstd, encode_zstd(model.data[1]),
                   offer.blocks[1][0]));
  const auto patch = encode_sparse(block_of(old_embedding, 0), block_of(model.data[0], 0), 2);
  EXPECT_TRUE(send(*store, opened.epoch, 0, 0, Encoding::kSparse, patch, offer.blocks[0][0]));

  ASSERT_TRUE(seal(*store, "a", opened.epoch));
  const std::string id = commit(*store, "a", opened.epoch).value().version.id;
  EXPECT_EQ(pull(*store, id).value(), model.by_name());
  EXPECT_EQ(store->stats().bytes_in.at("sparse"), patch.size());
}

TEST(Store, APartKeepsTheRestOfItsBase) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  Model model = random_model(1);
  const std::string base = push(*store, model).value().version.id;
  Model part;
  part.specs = {model.specs[1]};
  part.data = {Bytes(128, std::byte{7})};
  UploadOffer offer = offer_of(part, false);
  offer.base = base;
  EXPECT_THAT(open_upload(*store, "a", offer).error().message(),
              HasSubstr("model.embed_tokens.weight"));
  offer.partial = true;

  const Epoch epoch = open_upload(*store, "a", offer).value().epoch;
  ASSERT_TRUE(send_missing(*store, "a", epoch, part));
  ASSERT_TRUE(seal(*store, "a", epoch));
  const std::string id = commit(*store, "a", epoch).value().version.id;

  model.data[1] = part.data[0];
  EXPECT_EQ(pull(*store, id).value(), model.by_name());
}

TEST(Store, OffersThatCannotBeAVersionAreRefused) {
  const TemporaryDir dir;
  const auto store = open_store(dir, {.max_version_bytes = 1 << 20});
  const auto refusal = [&](std::vector<TensorSpec> tensors, std::vector<OfferedFile> files = {},
                           std::optional<std::string> base = {}) {
    UploadOffer offer;
    offer.tensors = std::move(tensors);
    offer.files = std::move(files);
    offer.blocks.resize(offer.tensors.size() + offer.files.size());
    offer.base = std::move(base);
    return open_upload(*store, "a", offer).error().code();
  };
  const TensorSpec small{"a", DType::kF32, {1}};
  EXPECT_EQ(refusal({}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({small, small}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({small, {"module.a", DType::kF32, {1}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({{"a", DType::kF32, {1ull << 40, 1ull << 40}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({{"__metadata__", DType::kF32, {1}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({{"a", DType::kF32, Shape(65, 1)}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({{"a", DType::kF32, {1ull << 60}}}), ErrorCode::kTooLarge);
  EXPECT_EQ(refusal({small}, {{"../passwd", 1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({small}, {{"config.json", 65ull << 20}}), ErrorCode::kTooLarge);
  EXPECT_EQ(refusal({small}, {{"a.json", 1}, {"a.json", 1}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({small}, {}, "blake3:" + std::string(64, '0')), ErrorCode::kNotFound);
  EXPECT_EQ(store->stats().uploads_open, 0u);
}

TEST(Store, UploadsOfSeveralOwnersGoOnSideBySide) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  const Model first = random_model(1);
  const Model second = random_model(2);
  const Epoch a = open_upload(*store, "a", offer_of(first, true)).value().epoch;
  const Epoch b = open_upload(*store, "b", offer_of(second, true)).value().epoch;
  EXPECT_EQ(open_upload(*store, "a", offer_of(first, true)).value().epoch, a);
  EXPECT_EQ(store->uploads()->check("b", a).error().code(), ErrorCode::kConflict);
  ASSERT_TRUE(send_missing(*store, "a", a, first, 2));
  ASSERT_TRUE(send_missing(*store, "b", b, second));
  ASSERT_TRUE(send_missing(*store, "a", a, first));
  for (const auto& [owner, epoch] : {std::pair{"a", a}, std::pair{"b", b}}) {
    ASSERT_TRUE(seal(*store, owner, epoch));
    ASSERT_TRUE(commit(*store, owner, epoch));
  }
  EXPECT_THAT(ids(*store), SizeIs(2));
}

TEST(Store, ManyThreadsMayBringTheBlocksOfOneUpload) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  const Model model = random_model(1);
  const Epoch epoch = open_upload(*store, "a", offer_of(model, true)).value().epoch;
  std::vector<std::thread> senders;
  for (int i = 0; i < 4; ++i) {
    senders.emplace_back([&] {
      while (send_missing(*store, "a", epoch, model).value() > 0) {
      }
    });
  }
  for (std::thread& sender : senders) sender.join();

  ASSERT_TRUE(seal(*store, "a", epoch));
  EXPECT_EQ(pull(*store, commit(*store, "a", epoch).value().version.id).value(), model.by_name());
}

TEST(Store, CallsMayBeRepeated) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  const Model model = random_model(1);
  const Epoch epoch = open_upload(*store, "a", offer_of(model, true)).value().epoch;
  ASSERT_TRUE(send_missing(*store, "a", epoch, model));
  const auto& norm = model.data[1];
  EXPECT_TRUE(send(*store, epoch, 1, 0, Encoding::kIdentity, norm, std::nullopt));
  EXPECT_EQ(seal(*store, "a", epoch).value().id, seal(*store, "a", epoch).value().id);
  const CommitRequest request = as("one", "main", "");
  const auto first = commit(*store, "a", epoch, request).value();

  EXPECT_EQ(commit(*store, "a", epoch, request).value().version, first.version);
  EXPECT_EQ(commit(*store, "a", epoch, as("two")).error().code(), ErrorCode::kConflict);
  EXPECT_EQ(store->uploads()->abort("a", epoch).error().code(), ErrorCode::kConflict);
  // The whole push again: nothing is missing, and the version is the same.
  const auto again = open_upload(*store, "a", offer_of(model, true)).value();
  EXPECT_THAT(again.missing, IsEmpty());
  EXPECT_EQ(push(*store, model).value().version.id, first.version.id);
  EXPECT_THAT(ids(*store), SizeIs(1));
}

TEST(Store, TheLoserOfAHeadRecordsNothingAndMayTryAgain) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  const std::string first = push(*store, random_model(1), as("", "main")).value().version.id;
  const Model model = random_model(2);
  const Epoch epoch = open_upload(*store, "a", offer_of(model, true)).value().epoch;
  ASSERT_TRUE(send_missing(*store, "a", epoch, model));
  ASSERT_TRUE(seal(*store, "a", epoch));

  const auto lost = commit(*store, "a", epoch, as("", "main", ""));

  EXPECT_EQ(lost.error().code(), ErrorCode::kPreconditionFailed);
  EXPECT_THAT(lost.error().message(), HasSubstr(first));
  EXPECT_THAT(ids(*store), ElementsAre(first));
  const auto won = commit(*store, "a", epoch, as("", "main", first)).value();
  EXPECT_EQ(store->versions().heads()[0].id, won.version.id);
}

TEST(Store, OneOfManyMovesTheHead) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  std::vector<std::string> all;
  for (unsigned i = 0; i < 4; ++i) all.push_back(push(*store, random_model(i)).value().version.id);
  std::atomic<int> moves = 0;
  const auto listener = store->versions().on_head_moved([&] { ++moves; });
  std::atomic<int> wins = 0;
  std::vector<std::thread> racers;
  for (const std::string& id : all) {
    racers.emplace_back([&, id] {
      const auto moved = move_head(*store, "main", id, "");
      if (moved) ++wins;
    });
  }
  for (std::thread& racer : racers) racer.join();

  EXPECT_EQ(wins, 1);
  EXPECT_EQ(moves, 1);
  EXPECT_EQ(move_head(*store, "main", "blake3:0").error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE(store->versions().delete_head("main"));
  EXPECT_EQ(store->versions().delete_head("main").error().code(), ErrorCode::kNotFound);
}

TEST(Store, AnUploadGoesOnAfterARestartFromWhatWasVerified) {
  const TemporaryDir dir;
  for (const bool announced : {true, false}) {
    const Model model = random_model(announced ? 1 : 2);
    auto store = open_store(dir);
    const Epoch epoch = open_upload(*store, "a", offer_of(model, announced)).value().epoch;
    ASSERT_TRUE(send_missing(*store, "a", epoch, model, 3));
    store.reset();
    store = open_store(dir);

    const auto again = open_upload(*store, "a", offer_of(model, announced)).value();

    const auto missing = again.missing;
    std::uint64_t blocks = 0;
    for (const auto& run : missing) blocks += run.blocks;
    EXPECT_EQ(blocks, 2u);
    const auto other = open_upload(*store, "b", offer_of(model, announced)).value();
    EXPECT_EQ(other.verified_bytes, 0u) << "another owner has an upload of its own";
    const auto id = push(*store, model, {}, announced, "a").value().version.id;
    EXPECT_EQ(pull(*store, id).value(), model.by_name());
  }
}

TEST(Store, StagedBytesThatACrashLostDoNotCount) {
  const TemporaryDir dir;
  const Model model = random_model(1);
  auto store = open_store(dir);
  const Epoch epoch = open_upload(*store, "a", offer_of(model, false)).value().epoch;
  ASSERT_TRUE(send_missing(*store, "a", epoch, model));
  store.reset();
  std::size_t harmed = 0;
  for (const auto& each : fs::recursive_directory_iterator(dir / "store/uploads")) {
    if (!each.is_regular_file()) continue;
    if (harmed++ % 2 == 0) {
      flip_byte(each.path());
    } else {
      fs::resize_file(each.path(), each.file_size() - 1);
    }
  }
  ASSERT_EQ(harmed, 5u);
  store = open_store(dir);

  EXPECT_EQ(open_upload(*store, "a", offer_of(model, false)).value().verified_bytes, 0u);
  const auto id = push(*store, model, {}, false, "a").value().version.id;
  EXPECT_EQ(pull(*store, id).value(), model.by_name());
}

TEST(Store, WithoutDigestsReplaceBeginsAnew) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  UploadOffer offer = offer_of(random_model(1), false);
  const Epoch first = open_upload(*store, "a", offer).value().epoch;
  ASSERT_TRUE(send_missing(*store, "a", first, random_model(1), 3));
  EXPECT_EQ(open_upload(*store, "a", offer).value().epoch, first);
  offer.replace = true;

  const auto opened = open_upload(*store, "a", offer).value();

  EXPECT_NE(opened.epoch, first);
  EXPECT_EQ(opened.verified_bytes, 0u);
  EXPECT_FALSE(store->uploads()->touch(first));
  const Model model = random_model(2);
  ASSERT_TRUE(send_missing(*store, "a", opened.epoch, model));
  ASSERT_TRUE(seal(*store, "a", opened.epoch));
  const auto id = commit(*store, "a", opened.epoch).value().version.id;
  EXPECT_EQ(pull(*store, id).value(), model.by_name());
}

TEST(Store, WhatIsLateForAnUploadThatWasBegunAnewIsNotInIt) {
  const TemporaryDir dir;
  auto store = open_store(dir);
  const Model before = random_model(1), model = random_model(2);
  UploadOffer offer = offer_of(model, false);
  const Epoch first = open_upload(*store, "a", offer).value().epoch;
  // One has begun to write, the other has only claimed its block.
  auto writing = store->uploads()->claim(first, 1, 0, Encoding::kIdentity, 128).value();
  auto claiming =
      store->uploads()->claim(first, 2, 0, Encoding::kIdentity, before.data[2].size()).value();
  std::ranges::copy(before.data[1], writing->buffer().begin());
  ASSERT_TRUE(writing->filled(128));
  offer.replace = true;
  const Epoch anew = open_upload(*store, "a", offer).value().epoch;

  EXPECT_FALSE(writing->settle(std::nullopt));
  std::ranges::copy(before.data[2], claiming->buffer().begin());
  static_cast<void>(claiming->filled(before.data[2].size()));
  EXPECT_FALSE(claiming->settle(std::nullopt));
  writing.reset();
  claiming.reset();
  ASSERT_TRUE(send_missing(*store, "a", anew, model, 1));

  store.reset();
  store = open_store(dir);
  offer.replace = false;
  const Epoch resumed = open_upload(*store, "a", offer).value().epoch;
  ASSERT_TRUE(send_missing(*store, "a", resumed, model));
  ASSERT_TRUE(seal(*store, "a", resumed));
  const auto id = commit(*store, "a", resumed).value().version.id;
  EXPECT_EQ(pull(*store, id).value(), model.by_name());
}

TEST(Store, AnAbortedUploadLeavesNothing) {
  const TemporaryDir dir;
  const Model model = random_model(1);
  auto store = open_store(dir);
  const Epoch epoch = open_upload(*store, "a", offer_of(model, true)).value().epoch;
  auto late = store->uploads()->claim(epoch, 1, 0, Encoding::kIdentity, 128).value();
  ASSERT_TRUE(send_missing(*store, "a", epoch, model, 1));
  ASSERT_TRUE(store->uploads()->abort("a", epoch));
  EXPECT_TRUE(store->uploads()->abort("a", epoch));

  std::ranges::copy(model.data[1], late->buffer().begin());
  static_cast<void>(late->filled(128));
  EXPECT_FALSE(late->settle(std::nullopt)) << "a late block of an upload that is over";
  late.reset();
  EXPECT_EQ(open_upload(*store, "a", offer_of(model, true)).value().verified_bytes, 0u);
}

TEST(Store, ABodyIsAnUploadOfItsOwn) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  Model model = random_model(1);
  model.files.clear();
  const Epoch broken = store->uploads()->open_body("anonymous").value();
  const Epoch epoch = store->uploads()->open_body("anonymous").value();
  store->uploads()->fail(broken, Error(ErrorCode::kDisconnected, "gone"));
  EXPECT_FALSE(store->uploads()->touch(broken));
  ASSERT_TRUE(store->uploads()->plan_body(epoch, model.specs));
  ASSERT_TRUE(send_missing(*store, "anonymous", epoch, model));
  ASSERT_TRUE(seal(*store, "anonymous", epoch));
  const auto id = commit(*store, "anonymous", epoch).value().version.id;
  EXPECT_EQ(pull(*store, id).value(), model.by_name());
}

TEST(Store, AnUploadWhoseLeaseRanOutIsOverAndItsBlocksStay) {
  const TemporaryDir dir;
  const auto store = open_store(dir, {.lease = std::chrono::milliseconds(0)});
  const Model model = random_model(1);
  const Epoch epoch = open_upload(*store, "a", offer_of(model, true)).value().epoch;
  EXPECT_EQ(store->uploads()->check("a", epoch).error().code(), ErrorCode::kConflict);
  EXPECT_EQ(store->stats().uploads_open, 0u);
  EXPECT_NE(open_upload(*store, "a", offer_of(model, true)).value().epoch, epoch);
}

TEST(Store, RetentionLetsGoOfTheOldAndOfItsBlocksAlone) {
  const TemporaryDir dir;
  const auto store = open_store(dir, {.retention = {.keep_last = 2, .keep_younger = {}}});
  Model model = random_model(1);
  std::vector<std::string> pushed;
  for (int step = 0; step < 5; ++step) {
    model.data[1][0] = static_cast<std::byte>(step);  // one small block differs
    const CommitRequest request = as("step-" + std::to_string(step));
    pushed.push_back(push(*store, model, request).value().version.id);
    if (step == 1) {
      ASSERT_TRUE(store->versions().set_pin(pushed.back(), true));
    }
  }
  ASSERT_TRUE(store->blocking_collect());

  EXPECT_THAT(ids(*store), ElementsAre(pushed[4], pushed[3], pushed[1]));
  EXPECT_EQ(store->stats().objects, 4u + 3u);
  EXPECT_EQ(pull(*store, pushed[4]).value(), model.by_name());
  EXPECT_THAT(blocking_fsck(dir / "store", false).error().message(), HasSubstr("process"));
}

TEST(Store, WhatAReaderHoldsStaysOnDisk) {
  const TemporaryDir dir;
  const auto store = open_store(dir, {.retention = {.keep_last = 1, .keep_younger = {}}});
  const Model model = random_model(1);
  const std::string old = push(*store, model).value().version.id;
  auto reader = store->versions().open(old).value();
  ASSERT_TRUE(push(*store, random_model(2)));
  ASSERT_TRUE(store->blocking_collect());
  EXPECT_THAT(ids(*store), SizeIs(2)) << "retention lets a version be while it is read";

  ASSERT_TRUE(store->versions().delete_version(old));
  ASSERT_TRUE(store->blocking_collect());

  EXPECT_EQ(store->versions().open(old).error().code(), ErrorCode::kNotFound);
  std::vector<http::BodyPart> parts;
  ASSERT_TRUE(reader->append(1, 0, model.data[0].size(), parts));
  EXPECT_EQ(read_parts(parts), model.data[0]);
  parts.clear();
  reader.reset();
  EXPECT_EQ(store->blocking_collect().value().objects, 5u);
}

TEST(Store, WhatAnUploadCountsOnStaysOnDisk) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  Model model = random_model(1);
  const std::string old = push(*store, model).value().version.id;
  model.data[1][0] ^= std::byte{1};
  const auto opened = open_upload(*store, "a", offer_of(model, true)).value();
  UploadOffer part = offer_of(model, true);
  part.base = old;
  part.partial = true;
  part.tensors.resize(1);
  part.files.clear();
  part.blocks.resize(1);
  const Epoch other = open_upload(*store, "b", part).value().epoch;
  ASSERT_TRUE(store->versions().delete_version(old));
  ASSERT_TRUE(store->blocking_collect());

  ASSERT_TRUE(send_missing(*store, "a", opened.epoch, model));
  ASSERT_TRUE(seal(*store, "a", opened.epoch));
  const auto id = commit(*store, "a", opened.epoch).value().version.id;
  EXPECT_EQ(pull(*store, id).value(), model.by_name());
  ASSERT_TRUE(seal(*store, "b", other));
  EXPECT_EQ(commit(*store, "b", other).value().version.id, old);
  EXPECT_EQ(pull(*store, old).value(), random_model(1).by_name());
}

TEST(Store, BlobsAreFoundByTheirDigest) {
  const TemporaryDir dir;
  const auto store = open_store(dir);
  const Model model = random_model(1);
  const std::string id = push(*store, model).value().version.id;
  const Digest digest = digest_of(model.data[0]);
  {
    const auto blob = store->versions().find_blob(digest).value();
    EXPECT_EQ(blob.data->content().manifest.tensors[blob.entry].spec.name,
              "model.embed_tokens.weight");
  }
  ASSERT_TRUE(store->versions().delete_version(id));
  EXPECT_FALSE(store->versions().find_blob(digest));
}

TEST(Store, OneProcessHasAFolder) {
  const TemporaryDir dir;
  const auto store = open_store(dir);

  const auto second = Store::blocking_open(dir / "store");

  EXPECT_EQ(second.error().code(), ErrorCode::kConflict);
  EXPECT_THAT(second.error().message(), HasSubstr(std::to_string(::getpid())));
}

TEST(Store, AFolderOfSomethingElseIsLeftAlone) {
  const TemporaryDir dir;
  std::ofstream(dir / "thesis.tex") << "text";
  EXPECT_EQ(Store::blocking_open(dir.path()).error().code(), ErrorCode::kInvalidArgument);
}

TEST(Store, AMalformedVersionIsSetAsideAndTheOthersServe) {
  const TemporaryDir dir;
  auto store = open_store(dir);
  const std::string bad = push(*store, random_model(1), as("", "main")).value().version.id;
  const std::string good = push(*store, random_model(2)).value().version.id;
  store.reset();
  flip_byte(dir / ("store/versions/" + bad.substr(7) + ".json"));

  store = open_store(dir);

  EXPECT_THAT(ids(*store), ElementsAre(good));
  EXPECT_THAT(store->versions().heads(), IsEmpty());
  EXPECT_EQ(pull(*store, good).value(), random_model(2).by_name());
  EXPECT_EQ(push(*store, random_model(1)).value().version.id, bad);
}

TEST(Store, WithoutACatalogTheVersionsAreFoundAgain) {
  const TemporaryDir dir;
  auto store = open_store(dir);
  const std::string id = push(*store, random_model(1)).value().version.id;
  store.reset();
  std::ofstream(dir / "store/catalog.json") << "{\"format\"";

  store = open_store(dir);

  EXPECT_THAT(ids(*store), ElementsAre(id));
  EXPECT_EQ(pull(*store, id).value(), random_model(1).by_name());
}

TEST(Fsck, FindsEveryFlippedBitAndRepairMakesRoomForAPush) {
  const TemporaryDir dir;
  auto store = open_store(dir);
  const std::string id = push(*store, random_model(1)).value().version.id;
  store.reset();
  EXPECT_THAT(blocking_fsck(dir / "store", false).value().faults, IsEmpty());
  const auto files = object_files(dir);
  flip_byte(files[0]);
  fs::resize_file(files[1], 3);
  fs::remove(files[2]);

  EXPECT_THAT(blocking_fsck(dir / "store", false).value().faults, SizeIs(3));
  const auto report = blocking_fsck(dir / "store", true).value();
  ASSERT_THAT(report.faults, SizeIs(3));
  for (const StoreFault& fault : report.faults) EXPECT_THAT(fault.versions, ElementsAre(id));
  EXPECT_EQ(std::ranges::count(report.faults, true, &StoreFault::set_aside), 2);

  store = open_store(dir);
  EXPECT_THAT(open_upload(*store, "a", offer_of(random_model(1), true)).value().missing,
              ElementsAre(BlockLedger::Run{0, 0, 2}, BlockLedger::Run{1, 0, 1}));
  EXPECT_FALSE(pull(*store, id));
  ASSERT_TRUE(push(*store, random_model(1)));
  EXPECT_EQ(pull(*store, id).value(), random_model(1).by_name());
  store.reset();
  EXPECT_THAT(blocking_fsck(dir / "store", false).value().faults, IsEmpty());
}

}  // namespace
}  // namespace weft::store_test
