// Deltas in files, and what is counted of them.

#include "weft/transfer/delta_file.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/testing/temporary_dir.h"
#include "weft/transfer/delta_fixture.h"
#include "weft/transfer/delta_stats.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(DeltaFile, HasAllThatApplyingTakes) {
  const TemporaryDir dir;
  const Version base(base_model()), next(next_model());
  const auto report = blocking_write_delta_file(dir / "d", base.blocks(), next.blocks());
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->file_bytes, fs::file_size(dir / "d"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);

  const auto file = DeltaFile::blocking_open(dir / "d");
  ASSERT_TRUE(file) << file.error().message();
  DeltaStep step;
  step.target = delta_target(base.content(), file->manifest(), file->index()).value();
  step.index = &file->index();
  step.blocking_read = [&](std::size_t row, std::span<std::byte> scratch) {
    return file->blocking_read_payload(row, scratch);
  };
  Sink sink;
  ASSERT_TRUE(apply_to(sink, base.blocks(), {&step, 1}));
  EXPECT_EQ(sink.by_name(), by_name(next.model()));
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(DeltaFile, IsRefusedWhenAnyBitIsWrongOrAnyByteMissing) {
  const TemporaryDir dir;
  const Version base(tiny_model(1)), next(tiny_model(2));
  ASSERT_TRUE(blocking_write_delta_file(dir / "d", base.blocks(), next.blocks()));
  const std::string right = blocking_read_file(dir / "d").value();
  ASSERT_LT(right.size(), 1000u);
  for (std::size_t at = 0; at < right.size(); ++at) {
    std::string flipped = right;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
    write_file(dir / "x", flipped);
    const auto wrong = DeltaFile::blocking_open(dir / "x");
    ASSERT_FALSE(wrong) << at;
    EXPECT_THAT(wrong.error().message(), HasSubstr((dir / "x").string()));
    write_file(dir / "x", right.substr(0, at));
    ASSERT_FALSE(DeltaFile::blocking_open(dir / "x")) << at;
  }
  write_file(dir / "x", right + "x");
  EXPECT_FALSE(DeltaFile::blocking_open(dir / "x"));
  write_file(dir / "x", right);
  EXPECT_TRUE(DeltaFile::blocking_open(dir / "x"));
}

TEST(DeltaFile, IsNotThereAfterAnError) {
  const TemporaryDir dir;
  const Version base(tiny_model(1)), next(tiny_model(2));
  EXPECT_FALSE(blocking_write_delta_file(dir / "d", base.blocks(), Damaged(next.blocks(), "w", 0)));
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(DeltaStats, CountWhatChangesAndWhatEachEncodingNeeds) {
  const Version base(base_model()), next(next_model());
  const auto entries = blocking_delta_stats(base.blocks(), next.blocks(), 2).value();
  std::map<std::string, DeltaEntryStats> stats;
  for (const DeltaEntryStats& each : entries) {
    stats[entry_name(next.content().manifest, each.entry)] = each;
  }
  EXPECT_EQ(stats.at("long").elements, kLong);
  EXPECT_EQ(stats.at("long").changed, (kLong + 4999) / 5000);
  EXPECT_EQ(stats.at("long").bytes.identity, 2 * kLong);
  EXPECT_EQ(stats.at("long").bytes.sparse, 2 * 72 + 6 * stats.at("long").changed);
  EXPECT_LT(stats.at("long").bytes.delta, stats.at("long").bytes.xor_zstd);
  EXPECT_EQ(stats.at("same").changed, 0u);
  EXPECT_EQ(stats.at("same").bytes.identity, 0u);
  EXPECT_EQ(stats.at("added").changed, 300u);
  EXPECT_EQ(stats.at("added").bytes.sparse, 600u);
  EXPECT_EQ(stats.at("config.json").changed, 1u);
}

}  // namespace
}  // namespace weft
