#include "weft/trainer/run_state.h"

#include <array>
#include <cmath>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/testing/temporary_dir.h"

namespace weft {
namespace {

using testing::HasSubstr;

RunState some_state() {
  RunState state;
  const std::array<float, 3> values{1.5f, -0.0f, std::numeric_limits<float>::denorm_min()};
  const auto bytes = std::as_bytes(std::span(values));
  state.put("policy.", {{{"w", DType::kF32, {3}}, {bytes.begin(), bytes.end()}},
                        {{"w.none", DType::kBF16, {0}}, {}}});
  state.put("policz.", {{{"w", DType::kU8, {}}, {std::byte{7}}}});
  state.put("policy.steps", std::uint64_t{7});
  state.put("seed", std::numeric_limits<std::uint64_t>::max());
  state.put("kl", 0.1 + 0.2);
  state.put("least", std::numeric_limits<double>::denorm_min());
  state.values["phase"] = "a \"phrase\"\n";
  return state;
}

TEST(RunState, ComesBackBitForBit) {
  const TemporaryDir folder;
  const RunState saved = some_state();
  ASSERT_TRUE(blocking_save_state(folder.path() / "state.safetensors", saved));

  const auto loaded = blocking_load_state(folder.path() / "state.safetensors");
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ(*loaded, saved);
  EXPECT_EQ(loaded->number("kl").value(), 0.1 + 0.2);
  EXPECT_EQ(loaded->number("least").value(), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(loaded->integer("seed").value(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(loaded->text("phase").value(), "a \"phrase\"\n");
  const auto tensors = loaded->tensors_of("policy.");
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].spec, (TensorSpec{"w", DType::kF32, {3}}));
  EXPECT_EQ(tensors[0].bytes.size(), 12u);
}

TEST(RunState, NamesWhatIsNotThere) {
  const RunState state = some_state();

  EXPECT_THAT(state.integer("step").error().message(), HasSubstr("has no step"));
  EXPECT_THAT(state.integer("phase").error().message(), HasSubstr("phase is no number"));
}

TEST(RunState, RefusesAFileThatIsCutOrNotThere) {
  const TemporaryDir folder;
  const auto path = folder.path() / "state.safetensors";
  EXPECT_EQ(blocking_load_state(path).error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(blocking_save_state(path, some_state()));
  const auto size = std::filesystem::file_size(path);
  for (const std::uintmax_t cut : {size - 1, size / 2, std::uintmax_t{7}}) {
    std::filesystem::resize_file(path, cut);
    EXPECT_EQ(blocking_load_state(path).error().code(), ErrorCode::kCorrupt) << cut;
  }
}

}  // namespace
}  // namespace weft
