#include "weft/protocol/catalog.h"

#include <algorithm>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const auto kNobody = [](const std::string&) { return false; };

Catalog::Commit version(const std::string& id, std::int64_t created_ms = 0) {
  Catalog::Commit commit;
  commit.version.id = id;
  commit.version.created_ms = created_ms;
  return commit;
}

Catalog with_versions(std::initializer_list<std::string> ids) {
  Catalog catalog;
  std::int64_t now_ms = 0;
  for (const auto& id : ids) catalog.commit(version(id, now_ms += 1000)).value();
  return catalog;
}

std::vector<std::string> ids(const Catalog& catalog) {
  std::vector<std::string> all;
  for (const auto* each : catalog.newest_first()) all.push_back(each->id);
  return all;
}

TEST(Catalog, TheLastCommitIsTheNewestWhateverTheClockSays) {
  Catalog catalog;
  catalog.commit(version("a", 5000)).value();
  catalog.commit(version("b", 1000)).value();
  EXPECT_THAT(ids(catalog), ElementsAre("b", "a"));

  catalog.commit(version("a", 500)).value();

  EXPECT_THAT(ids(catalog), ElementsAre("a", "b"));
}

TEST(Catalog, ACommitAgainKeepsPinParentAndOrigin) {
  Catalog catalog;
  auto first = version("a");
  first.version.parent = "p";
  first.version.origin = "trainer-1";
  catalog.commit(first).value();
  catalog.set_pin("a", true).value();
  auto again = version("a");
  again.version.origin = "trainer-2";

  catalog.commit(again).value();

  EXPECT_TRUE(catalog.try_find("a")->pinned);
  EXPECT_EQ(catalog.try_find("a")->parent, "p");
  EXPECT_EQ(catalog.try_find("a")->origin, "trainer-2");
}

TEST(Catalog, ALabelNamesOneVersionAndAVersionMayHaveSeveral) {
  Catalog catalog = with_versions({"a", "b"});
  catalog.set_label("one", "a").value();
  catalog.set_label("two", "a").value();

  catalog.set_label("one", "b").value();

  EXPECT_THAT(catalog.labels_of("a"), ElementsAre("two"));
  EXPECT_THAT(catalog.labels_of("b"), ElementsAre("one"));
  EXPECT_EQ(catalog.set_label("one", "c").error().code(), ErrorCode::kNotFound);
  for (const std::string& bad : {std::string(16385, 'x'), std::string("\xff")}) {
    EXPECT_EQ(catalog.set_label(bad, "a").error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(Catalog, TheLoserOfARaceForAHeadLearnsWhoWon) {
  Catalog catalog = with_versions({"a", "b", "c"});
  catalog.move_head("main", "a", "").value();
  catalog.move_head("main", "b", "a").value();

  const auto lost = catalog.move_head("main", "c", "a");

  EXPECT_EQ(lost.error().code(), ErrorCode::kPreconditionFailed);
  EXPECT_THAT(lost.error().message(), HasSubstr("b"));
  EXPECT_EQ(catalog.heads().at("main"), "b");
  EXPECT_EQ(catalog.move_head("main", "c", "").error().code(), ErrorCode::kPreconditionFailed);
  EXPECT_EQ(catalog.move_head("other", "c", "a").error().code(), ErrorCode::kPreconditionFailed);
  EXPECT_EQ(catalog.move_head("main", "z", "b").error().code(), ErrorCode::kNotFound);
}

TEST(Catalog, ACommitWhoseHeadMovedRecordsNothing) {
  Catalog catalog = with_versions({"a"});
  catalog.move_head("main", "a", "").value();
  const Catalog before = catalog;
  auto commit = version("b");
  commit.label = "label";
  commit.head = "main";
  commit.if_match = "z";

  EXPECT_EQ(catalog.commit(commit).error().code(), ErrorCode::kPreconditionFailed);
  EXPECT_EQ(catalog, before);
  commit.if_match = "a";
  EXPECT_TRUE(catalog.commit(commit));
  EXPECT_EQ(catalog.heads().at("main"), "b");
}

TEST(Catalog, ACommitThatNamesNoHeadCannotSayWhatItIs) {
  Catalog catalog;
  auto commit = version("a");
  commit.if_match = "";

  EXPECT_EQ(catalog.commit(commit).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(ids(catalog), IsEmpty());
}

TEST(Catalog, HeadNamesAreShortAndPlain) {
  for (const auto* name : {"main", "canary-2", "a.b_c", "A"}) EXPECT_TRUE(is_head_name(name));
  for (const auto* name : {"", "a/b", "a b", "caf\xc3\xa9", "a\n"})
    EXPECT_FALSE(is_head_name(name));
  EXPECT_FALSE(is_head_name(std::string(129, 'a')));
}

TEST(Catalog, WhatAHeadOrAPinHoldsIsNotRemoved) {
  Catalog catalog = with_versions({"a", "b", "c"});
  catalog.set_label("gone", "c").value();
  catalog.move_head("main", "a", {}).value();
  catalog.set_pin("b", true).value();

  EXPECT_THAT(catalog.remove("a").error().message(), HasSubstr("main"));
  EXPECT_THAT(catalog.remove("b").error().message(), HasSubstr("pinned"));
  EXPECT_TRUE(catalog.remove("c"));
  EXPECT_EQ(catalog.remove("c").error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(catalog.labels(), IsEmpty());
}

TEST(Catalog, RetentionKeepsWhatAnyOfItsRulesKeeps) {
  const Catalog catalog = with_versions({"a", "b", "c", "d"});  // at 1, 2, 3 and 4 s

  EXPECT_THAT(catalog.expendable({}, 100'000, kNobody), IsEmpty());
  EXPECT_THAT(catalog.expendable({2, {}}, 100'000, kNobody), ElementsAre("a", "b"));
  EXPECT_THAT(catalog.expendable({1, milliseconds(2500)}, 5000, kNobody), ElementsAre("a", "b"));
  EXPECT_THAT(catalog.expendable({3, milliseconds(1500)}, 5000, kNobody), ElementsAre("a"));
}

TEST(Catalog, RetentionNeverTakesTheNewestNorWhatIsHeld) {
  Catalog catalog = with_versions({"a", "b", "c", "d", "e"});
  catalog.move_head("main", "a", {}).value();
  catalog.set_pin("b", true).value();
  const auto held = [](const std::string& id) { return id == "c"; };

  EXPECT_THAT(catalog.expendable({{}, milliseconds(0)}, INT64_MAX, held), ElementsAre("d"));
  EXPECT_THAT(catalog.expendable({0, {}}, INT64_MIN / 2, held), ElementsAre("d"));
}

// The property: whatever happens, take_garbage() gives exactly what is on disk and unreferenced.
TEST(ObjectLedger, AgreesWithAMultisetOfReferences) {
  std::mt19937 random(4);
  const auto below = [&](unsigned n) { return static_cast<unsigned>(random() % n); };
  const auto digest = [](unsigned i) {
    Digest made;
    made.bytes[0] = static_cast<std::byte>(i);
    return made;
  };
  ObjectLedger ledger;
  std::set<unsigned> on_disk;
  std::multiset<unsigned> references;
  for (unsigned step = 0; step < 20'000; ++step) {
    const unsigned i = below(12);
    switch (below(5)) {
      case 0:
        ledger.add(digest(i));
        on_disk.insert(i);
        break;
      case 1:
        ledger.reference(digest(i));
        references.insert(i);
        break;
      case 2:
        if (const auto found = references.find(i); found != references.end()) {
          ledger.release(digest(i));
          references.erase(found);
        }
        break;
      case 3:
        ledger.lose(digest(i));
        on_disk.erase(i);
        break;
      default: {
        auto garbage = ledger.take_garbage();
        std::ranges::sort(garbage);
        std::vector<Digest> expected;
        for (const unsigned each : on_disk) {
          if (!references.contains(each)) expected.push_back(digest(each));
        }
        ASSERT_EQ(garbage, expected) << "step " << step;
        std::erase_if(on_disk, [&](unsigned each) { return !references.contains(each); });
      }
    }
    ASSERT_EQ(ledger.has(digest(i)), on_disk.contains(i)) << "step " << step;
    ASSERT_EQ(ledger.objects(), on_disk.size());
  }
}

// The same catalog told naively: lists that are searched.
struct Model {
  struct Row {
    std::string id;
    std::int64_t created_ms;
    bool pinned;
  };
  std::vector<Row> rows;  // newest last
  std::map<std::string, std::string> heads, labels;

  Row* find(const std::string& id) {
    const auto found = std::ranges::find(rows, id, &Row::id);
    return found == rows.end() ? nullptr : &*found;
  }
  bool is_head(const std::string& id) const {
    return std::ranges::any_of(heads, [&](const auto& head) { return head.second == id; });
  }
  void commit(const std::string& id, std::int64_t now_ms) {
    bool pinned = false;
    if (const Row* const row = find(id)) pinned = row->pinned;
    std::erase_if(rows, [&](const Row& row) { return row.id == id; });
    rows.push_back({id, now_ms, pinned});
  }
  bool remove(const std::string& id) {
    const Row* const row = find(id);
    if (row == nullptr || row->pinned || is_head(id)) return false;
    std::erase_if(rows, [&](const Row& each) { return each.id == id; });
    std::erase_if(labels, [&](const auto& label) { return label.second == id; });
    return true;
  }
};

TEST(Catalog, AgreesWithANaiveModel) {
  std::mt19937 random(5);
  const auto pick = [&](std::initializer_list<const char*> of) {
    return std::string(of.begin()[random() % of.size()]);
  };
  Catalog catalog;
  Model model;
  for (int step = 0; step < 20'000; ++step) {
    const std::string id = pick({"a", "b", "c", "d", "e", "f"});
    const std::string name = pick({"main", "canary"});
    const auto now_ms = static_cast<std::int64_t>(random() % 1000);
    switch (random() % 7) {
      case 0: {
        catalog.commit(version(id, now_ms)).value();
        model.commit(id, now_ms);
        break;
      }
      case 1: {
        const std::string expected = random() % 2 == 0 ? model.heads[name] : pick({"", "a", "b"});
        if (model.heads[name].empty()) model.heads.erase(name);
        const auto current = model.heads.find(name);
        const bool wins =
            model.find(id) && (current == model.heads.end() ? "" : current->second) == expected;
        ASSERT_EQ(catalog.move_head(name, id, expected).has_value(), wins) << "step " << step;
        if (wins) model.heads[name] = id;
        break;
      }
      case 2:
        ASSERT_EQ(catalog.delete_head(name).has_value(), model.heads.erase(name) > 0);
        break;
      case 3:
        ASSERT_EQ(catalog.set_label(name, id).has_value(), model.find(id) != nullptr);
        if (model.find(id)) model.labels[name] = id;
        break;
      case 4: {
        const bool pinned = random() % 3 == 0;
        ASSERT_EQ(catalog.set_pin(id, pinned).has_value(), model.find(id) != nullptr);
        if (auto* const row = model.find(id)) row->pinned = pinned;
        break;
      }
      case 5:
        ASSERT_EQ(catalog.remove(id).has_value(), model.remove(id)) << "step " << step;
        break;
      default: {
        const std::uint64_t keep = 1 + random() % 4;
        std::vector<std::string> expected;
        for (std::size_t i = 0; i + keep < model.rows.size(); ++i) {
          const auto& row = model.rows[i];
          if (row.pinned || model.is_head(row.id) || row.id == "a") continue;
          if (now_ms - row.created_ms >= 200) expected.push_back(row.id);
        }
        ASSERT_EQ(catalog.expendable({keep, milliseconds(200)}, now_ms,
                                     [](const std::string& each) { return each == "a"; }),
                  expected)
            << "step " << step;
      }
    }
    ASSERT_EQ(catalog.heads(), model.heads) << "step " << step;
    ASSERT_EQ(catalog.labels(), model.labels) << "step " << step;
    std::vector<std::string> newest;
    for (const auto& row : model.rows) newest.insert(newest.begin(), row.id);
    ASSERT_EQ(ids(catalog), newest) << "step " << step;
  }
}

}  // namespace
}  // namespace weft
