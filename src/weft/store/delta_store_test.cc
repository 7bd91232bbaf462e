// The deltas that a store makes, offers, keeps and lets go; and what is left of them wherever the
// process ends.

#include <algorithm>
#include <atomic>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/store/store_fixture.h"
#include "weft/testing/temporary_dir.h"
#include "weft/transfer/delta_object.h"

namespace weft::store_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// A version that differs little from small_model(1).
Model step(unsigned number) {
  Model model = small_model(1);
  model.data[0][number] ^= std::byte{1};
  return model;
}

CommitRequest made_from(const std::string& parent, const std::string& label) {
  CommitRequest request = as(label, "main");
  request.parent = parent;
  return request;
}

std::string push_step(Store& store, unsigned number, const std::string& parent) {
  const auto pushed = push(store, step(number), made_from(parent, std::to_string(number)));
  store.blocking_finish_deltas();
  return pushed.value().version.id;
}

// [from, to] of all on offer, each held against its versions.
std::vector<std::pair<std::string, std::string>> offered(Store& store) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const OfferedDeltaPtr& delta : store.versions().deltas()) {
    const std::string base = digest_text(delta->index().base);
    const std::string id = digest_text(delta->index().target);
    const auto from = store.versions().content(base).value();
    const auto to = store.versions().content(id).value();
    const auto checked = check_delta_index(DeltaPair(*from, *to), delta->index());
    EXPECT_TRUE(checked) << checked.error().message();
    for (std::size_t pack = 0; pack < delta->index().packs.size(); ++pack) {
      const auto file = delta->open_pack(pack);
      EXPECT_TRUE(file) << file.error().message();
      if (!file) continue;
      const std::string bytes = blocking_read_file((*file)->path()).value();
      EXPECT_EQ(digest_of(std::as_bytes(std::span(bytes))), delta->index().packs[pack].digest);
    }
    all.emplace_back(base, id);
  }
  return all;
}

// With the deltas that are there, and no others.
std::unique_ptr<Store> open_as_it_is(const fs::path& folder) {
  StoreOptions options;
  options.deltas = false;
  return Store::blocking_open(folder, std::move(options)).value();
}

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {}));
}

TEST(StoreDeltas, AreOfferedAfterACommitThatNamesItsParent) {
  const TemporaryDir dir;
  const auto store = Store::blocking_open(dir / "s").value();
  const std::string a = push_step(*store, 1, "");
  EXPECT_THAT(offered(*store), IsEmpty());
  const std::string b = push_step(*store, 2, a);
  const std::string c = push_step(*store, 3, b);
  EXPECT_THAT(offered(*store), testing::UnorderedElementsAre(std::pair(a, b), std::pair(b, c)));
  EXPECT_EQ(store->stats().deltas, 2u);
  EXPECT_EQ(store->stats().deltas_made, 2u);
  EXPECT_GT(store->stats().delta_bytes, 0u);
  EXPECT_TRUE(store->versions().try_find_delta(c, b));
  EXPECT_FALSE(store->versions().try_find_delta(c, a));
}

TEST(StoreDeltas, AreThereAfterARestart) {
  const TemporaryDir dir;
  std::string a, b;
  {
    const auto store = Store::blocking_open(dir / "s").value();
    a = push_step(*store, 1, "");
    b = push_step(*store, 2, a);
  }
  const auto store = Store::blocking_open(dir / "s").value();
  EXPECT_THAT(offered(*store), ElementsAre(std::pair(a, b)));
}

TEST(StoreDeltas, ThatAStopCutOffAreMadeAfterTheNextStart) {
  const TemporaryDir dir;
  std::string a, b;
  {
    const auto store = open_as_it_is(dir / "s");
    a = push_step(*store, 1, "");
    b = push_step(*store, 2, a);
    EXPECT_THAT(offered(*store), IsEmpty());
  }
  const auto store = Store::blocking_open(dir / "s").value();
  store->blocking_finish_deltas();
  EXPECT_THAT(offered(*store), ElementsAre(std::pair(a, b)));
}

TEST(StoreDeltas, AreNotMadeWhereTheyDoNotPayOrAreNotWanted) {
  const TemporaryDir dir;
  {
    const auto store = Store::blocking_open(dir / "s").value();
    const std::string a = push_step(*store, 1, "");
    ASSERT_TRUE(push(*store, small_model(2), made_from(a, "other")));
    store->blocking_finish_deltas();
    EXPECT_THAT(offered(*store), IsEmpty());
    EXPECT_THAT(store->stats().deltas_given_up, ElementsAre(std::pair("too_large", 1u)));
    push_step(*store, 3, "blake3:" + std::string(64, '0'));
    EXPECT_EQ(files_in(dir / "s/deltas"), 0u);
  }
  StoreOptions options;
  options.deltas = false;
  const auto store = Store::blocking_open(dir / "s", options).value();
  push_step(*store, 4, store->versions().versions().front().id);
  EXPECT_THAT(offered(*store), IsEmpty());
}

TEST(StoreDeltas, GoWithTheirVersions) {
  const TemporaryDir dir;
  const auto store = Store::blocking_open(dir / "s").value();
  const std::string a = push_step(*store, 1, "");
  const std::string b = push_step(*store, 2, a);
  const std::string c = push_step(*store, 3, b);
  ASSERT_TRUE(store->versions().delete_version(a));
  ASSERT_TRUE(store->blocking_collect());
  EXPECT_THAT(offered(*store), ElementsAre(std::pair(b, c)));
  EXPECT_EQ(files_in(dir / "s/deltas"), 2u);
  ASSERT_TRUE(move_head(*store, "main", b));
  ASSERT_TRUE(store->versions().delete_version(c));
  ASSERT_TRUE(store->blocking_collect());
  EXPECT_EQ(files_in(dir / "s/deltas"), 0u);
}

TEST(StoreDeltas, RetentionTakesThemToo) {
  const TemporaryDir dir;
  StoreOptions options;
  options.retention.keep_last = 2;
  const auto store = Store::blocking_open(dir / "s", options).value();
  std::string before, last;
  for (unsigned number = 1; number < 6; ++number) {
    before = std::exchange(last, push_step(*store, number, last));
  }
  ASSERT_TRUE(store->blocking_collect());
  EXPECT_THAT(store->versions().versions(), SizeIs(2));
  EXPECT_THAT(offered(*store), ElementsAre(std::pair(before, last)));
}

class DamagedDeltas : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto store = Store::blocking_open(folder_).value();
    push_step(*store, 2, push_step(*store, 1, ""));
    for (const auto& each : fs::directory_iterator(folder_ / "deltas")) {
      (each.path().extension() == ".index" ? index_ : pack_) = each.path();
    }
  }
  void flip(const fs::path& path) {
    std::string bytes = blocking_read_file(path).value();
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    std::ofstream(path, std::ios::binary) << bytes;
  }
  std::size_t deltas_after_restart() {
    const auto store = open_as_it_is(folder_);
    return offered(*store).size();
  }

  const TemporaryDir dir_;
  const fs::path folder_ = dir_ / "s";
  fs::path index_, pack_;
};

TEST_F(DamagedDeltas, AreDroppedAtTheStart) {
  flip(index_);
  std::ofstream(folder_ / "deltas/stray.0.pack") << "x";
  EXPECT_EQ(deltas_after_restart(), 0u);
  EXPECT_EQ(files_in(folder_ / "deltas"), 0u);
}

TEST_F(DamagedDeltas, WhosePacksAreShortOrGoneAreDroppedToo) {
  fs::resize_file(pack_, fs::file_size(pack_) - 1);
  EXPECT_EQ(deltas_after_restart(), 0u);
}

TEST_F(DamagedDeltas, AreFoundByFsckAndSetAside) {
  EXPECT_EQ(blocking_fsck(folder_, false).value().deltas, 1u);
  flip(pack_);
  const auto report = blocking_fsck(folder_, true).value();
  ASSERT_THAT(report.faults, SizeIs(1));
  EXPECT_THAT(report.faults[0].what, HasSubstr("its bytes are blake3:"));
  EXPECT_THAT(report.faults[0].versions, IsEmpty());
  EXPECT_TRUE(report.faults[0].set_aside);
  EXPECT_THAT(blocking_fsck(folder_, false).value().faults, IsEmpty());
  EXPECT_EQ(deltas_after_restart(), 0u);
  EXPECT_EQ(files_in(folder_ / "deltas"), 0u);
}

// The process ends, or the disk is full, before each step of making a delta. The versions are
// whole, and the delta is either there, right and proven, or not at all.
TEST(StoreDeltas, WhereverMakingOneEndsNothingHalfIsLeft) {
  const TemporaryDir dir;
  std::string a;
  {
    const auto store = Store::blocking_open(dir / "prepared").value();
    a = push_step(*store, 1, "");
  }
  bool ended = false;
  unsigned offers = 0;
  for (unsigned at = 1; !ended; ++at) {
    ASSERT_LT(at, 100u);
    const fs::path folder = dir / std::to_string(at);
    fs::copy(dir / "prepared", folder, fs::copy_options::recursive);
    std::atomic<unsigned> steps = 0;
    std::string b;
    {
      StoreOptions options;
      options.disk_hook = [&](DiskStep, const fs::path& path, const fs::path&) -> Result<void> {
        const bool counts = path.string().find("/deltas") != std::string::npos;
        if (!counts || ++steps < at) return {};
        return Error(ErrorCode::kNoSpace, "the disk is full");
      };
      // At the start too: the folder is made then.
      const auto store = Store::blocking_open(folder, options);
      if (store) b = push_step(**store, 2, a);
      ended = steps < at;
    }
    const auto store = open_as_it_is(folder);
    const auto deltas = offered(*store);
    offers += deltas.empty() ? 0 : 1;
    if (ended) {
      EXPECT_THAT(deltas, ElementsAre(std::pair(a, b)));
    }
    EXPECT_EQ(files_in(folder / "deltas"), 2 * deltas.size()) << "step " << at;
    EXPECT_EQ(pull(*store, a).value(), step(1).by_name());
    if (!b.empty()) {
      EXPECT_EQ(pull(*store, b).value(), step(2).by_name());
    }
  }
  EXPECT_GE(offers, 1u);
}

}  // namespace
}  // namespace weft::store_test
