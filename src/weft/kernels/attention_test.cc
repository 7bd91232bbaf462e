#include "weft/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "weft/kernels/target_test.h"

namespace weft::kernels {
namespace {

WEFT_EACH_TARGET(Attention);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One sequence of `positions` in a cache whose pages lie in any order and whose unused slots are
// NaN.
struct Sequence {
  Sequence(std::size_t positions_, KvLayout layout_) : positions(positions_), layout(layout_) {
    const std::size_t floats = layout.kv_heads * layout.head_dim;
    keys = random_floats(positions * floats, 1);
    values = random_floats(positions * floats, 2);
    const std::size_t count = (positions + layout.page_tokens - 1) / layout.page_tokens;
    storage.assign((count + 2) * layout.page_floats(), kNan);
    for (std::size_t i = 0; i < count; ++i) pages.push_back(static_cast<std::uint32_t>(count - i));
    for (std::size_t p = 0; p < positions; ++p) {
      store_kv(layer(), pages[p / layout.page_tokens], p % layout.page_tokens,
               std::span(keys).subspan(p * floats, floats),
               std::span(values).subspan(p * floats, floats));
    }
  }

  KvLayer layer() { return {layout, storage.data()}; }

  std::vector<float> attend(std::span<const float> queries, std::size_t kv_head, float scale,
                            std::size_t begin, std::size_t end) {
    std::vector<float> out(queries.begin(), queries.end());
    attention(layer(), pages, kv_head, scale,
              {.queries = out.data(),
               .tokens = 1,
               .group = queries.size() / layout.head_dim,
               .position = end - 1,
               .window = end - begin});
    return out;
  }

  double key(std::size_t position, std::size_t head, std::size_t i) const {
    return static_cast<double>(keys[(position * layout.kv_heads + head) * layout.head_dim + i]);
  }
  double value(std::size_t position, std::size_t head, std::size_t i) const {
    return static_cast<double>(values[(position * layout.kv_heads + head) * layout.head_dim + i]);
  }

  std::size_t positions;
  KvLayout layout;
  std::vector<float> keys, values, storage;
  std::vector<std::uint32_t> pages;
};

// Softmax in fp64, over all positions at once.
std::vector<double> reference(const Sequence& sequence, std::span<const float> query,
                              std::size_t kv_head, float scale, std::size_t begin,
                              std::size_t end) {
  std::vector<double> scores;
  for (std::size_t p = begin; p < end; ++p) {
    double score = 0;
    for (std::size_t i = 0; i < query.size(); ++i) {
      score += static_cast<double>(query[i]) * sequence.key(p, kv_head, i);
    }
    scores.push_back(score * static_cast<double>(scale));
  }
  const double largest = *std::ranges::max_element(scores);
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  std::vector<double> out(query.size());
  for (std::size_t p = begin; p < end; ++p) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] += scores[p - begin] / sum * sequence.value(p, kv_head, i);
    }
  }
  return out;
}

void check(Sequence& sequence, std::size_t begin, std::size_t end) {
  const std::size_t head_dim = sequence.layout.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  const std::size_t group = 3;
  const auto queries = random_floats(group * head_dim, 5, 2.0f);
  for (std::size_t head = 0; head < sequence.layout.kv_heads; ++head) {
    const auto out = sequence.attend(queries, head, scale, begin, end);
    for (std::size_t g = 0; g < group; ++g) {
      const auto query = std::span(queries).subspan(g * head_dim, head_dim);
      const auto expected = reference(sequence, query, head, scale, begin, end);
      for (std::size_t i = 0; i < head_dim; ++i) {
        ASSERT_NEAR(static_cast<double>(out[g * head_dim + i]), expected[i], 4e-6)
            << "head " << head << " of " << head_dim << ", positions " << begin << " to " << end;
      }
    }
  }
}

TEST_P(Attention, EveryNumberOfPositionsIsRight) {
  Sequence sequence(83, {2, 48, 16});
  for (std::size_t end = 1; end <= 83; ++end) check(sequence, 0, end);
}

TEST_P(Attention, EveryHeadSizeIsRight) {
  for (const std::size_t head_dim : {1, 2, 3, 16, 17, 31, 64, 80, 96, 100, 128, 255, 256}) {
    Sequence sequence(37, {2, head_dim, 32});
    check(sequence, 0, 37);
  }
}

TEST_P(Attention, WindowStartsAnywhereAndReadsNothingBefore) {
  Sequence sequence(70, {1, 32, 16});
  for (std::size_t begin = 0; begin < 70; ++begin) {
    if (begin % 16 == 0 && begin > 0) sequence.pages[begin / 16 - 1] = ~0u;
    check(sequence, begin, 70);
  }
}

TEST_P(Attention, ResultDependsOnNeitherPageSizeNorNeighbours) {
  const std::size_t head_dim = 64;
  const std::size_t group = 11;
  const auto queries = random_floats(group * head_dim, 5, 2.0f);
  Sequence small(100, {2, head_dim, 16});
  Sequence large(100, {2, head_dim, 64});

  const auto out = small.attend(queries, 1, 0.125f, 5, 100);

  EXPECT_EQ(large.attend(queries, 1, 0.125f, 5, 100), out);
  for (std::size_t g = 0; g < group; ++g) {
    const auto alone =
        small.attend(std::span(queries).subspan(g * head_dim, head_dim), 1, 0.125f, 5, 100);
    EXPECT_TRUE(std::ranges::equal(alone, std::span(out).subspan(g * head_dim, head_dim)));
  }
}

TEST_P(Attention, TokensOfABlockAreAsEachAlone) {
  const std::size_t head_dim = 80;
  Sequence sequence(100, {2, head_dim, 16});
  for (const std::size_t group : {1, 2, 3, 5, 33}) {
    const std::size_t stride = group * head_dim + 7;
    for (const std::size_t position : {0, 1, 15, 40, 63}) {
      for (const std::size_t window : {0, 1, 7, 16, 37}) {
        auto queries = random_floats(37 * stride, 5, 2.0f);
        const auto before = queries;

        attention(sequence.layer(), sequence.pages, 1, 0.1f,
                  {queries.data(), 37, stride, group, position, window});

        for (std::size_t t = 0; t < 37; ++t) {
          const std::size_t end = position + t + 1;
          const std::size_t begin = window != 0 && window < end ? end - window : 0;
          const auto alone = sequence.attend(
              std::span(before).subspan(t * stride, group * head_dim), 1, 0.1f, begin, end);
          ASSERT_TRUE(
              std::ranges::equal(alone, std::span(queries).subspan(t * stride, group * head_dim)));
          ASSERT_TRUE(
              std::ranges::equal(std::span(before).subspan(t * stride + group * head_dim, 7),
                                 std::span(queries).subspan(t * stride + group * head_dim, 7)));
        }
      }
    }
  }
}

TEST_P(Attention, NanOfALaterTokenDoesNotReachEarlierOnes) {
  Sequence sequence(40, {1, 32, 16});
  for (const std::size_t token : {17, 30}) {
    std::fill_n(sequence.keys.begin() + static_cast<std::ptrdiff_t>(token * 32), 32, kNan);
    store_kv(sequence.layer(), sequence.pages[token / 16], token % 16,
             std::span(sequence.keys).subspan(token * 32, 32),
             std::span(sequence.keys).subspan(token * 32, 32));
  }
  auto queries = random_floats(40 * 32, 5);

  attention(sequence.layer(), sequence.pages, 0, 0.2f, {queries.data(), 40, 32, 1, 0, 0});

  for (std::size_t t = 0; t < 40; ++t) EXPECT_EQ(std::isnan(queries[t * 32]), t >= 17) << t;
}

TEST_P(Attention, LargeScoresDoNotOverflow) {
  Sequence sequence(50, {1, 16, 16});
  for (float& key : sequence.keys) key *= 1e4f;
  for (std::size_t p = 0; p < 50; ++p) {
    store_kv(sequence.layer(), sequence.pages[p / 16], p % 16,
             std::span(sequence.keys).subspan(p * 16, 16),
             std::span(sequence.values).subspan(p * 16, 16));
  }
  // Scores are up to 1e5 apart, and good to 1e-2: the likeliest position takes all.
  const auto query = random_floats(16, 5);
  const auto expected = reference(sequence, query, 0, 1.0f, 0, 50);

  const auto out = sequence.attend(query, 0, 1.0f, 0, 50);

  for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(static_cast<double>(out[i]), expected[i], 1e-5);
}

TEST_P(Attention, NanInAKeyIsNotHidden) {
  for (const std::size_t position : {0, 20, 39}) {
    Sequence sequence(40, {1, 16, 16});
    sequence.keys[position * 16 + 3] = kNan;
    store_kv(sequence.layer(), sequence.pages[position / 16], position % 16,
             std::span(sequence.keys).subspan(position * 16, 16),
             std::span(sequence.values).subspan(position * 16, 16));
    const auto out = sequence.attend(random_floats(16, 5), 0, 1.0f, 0, 40);
    EXPECT_TRUE(std::isnan(out[0])) << position;
  }
}

}  // namespace
}  // namespace weft::kernels
