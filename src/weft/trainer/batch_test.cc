#include "weft/trainer/batch.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Tokens = std::vector<std::uint32_t>;

// The text that `at` in ids ends: the tokens it sees, by their positions.
Tokens text_at(const TokenBatch& batch, std::size_t at) {
  const std::size_t begin = at - at % batch.width;
  Tokens text;
  for (std::size_t column = 0; column < batch.width; ++column) {
    const bool is_seen =
        batch.sees.empty() ? begin + column <= at : batch.sees[at * batch.width + column] == 1;
    if (!is_seen) continue;
    if (!batch.positions.empty()) {
      EXPECT_EQ(batch.positions[begin + column], static_cast<std::int64_t>(text.size()));
    }
    text.push_back(static_cast<std::uint32_t>(batch.ids[begin + column]));
  }
  return text;
}

std::size_t place(const TokenBatch& batch, std::size_t scored) {
  return static_cast<std::size_t>(batch.places[static_cast<std::size_t>(batch.place_of[scored])]);
}

// Every scored token stands behind its own sequence and nothing else.
void expect_own_texts(const TokenBatch& batch, std::span<const TokenSequence> sequences) {
  std::size_t scored = 0;
  for (const TokenSequence& sequence : sequences) {
    Tokens text = sequence.prompt;
    for (const std::uint32_t token : sequence.answer) {
      ASSERT_LT(scored, batch.place_of.size());
      EXPECT_EQ(text_at(batch, place(batch, scored)), text);
      EXPECT_EQ(batch.targets[scored], token);
      text.push_back(token);
      ++scored;
    }
  }
  EXPECT_EQ(batch.place_of.size(), scored);
  EXPECT_EQ(batch.targets.size(), scored);
}

// Groups of a few answers to prompts of a small vocabulary, so that much is in common.
std::vector<TokenSequence> random_groups(std::mt19937& random, std::size_t longest) {
  const auto tokens = [&] {
    Tokens drawn(1 + random() % longest);
    for (std::uint32_t& token : drawn) token = static_cast<std::uint32_t>(random() % 3);
    return drawn;
  };
  std::vector<TokenSequence> sequences;
  for (std::size_t group = 0; group < 6; ++group) {
    const Tokens prompt = tokens();
    for (std::size_t i = random() % 6 + 1; i > 0; --i) sequences.push_back({prompt, tokens()});
  }
  return sequences;
}

TEST(MakeBatch, PadsSequencesOfTheirOwnPrompts) {
  const std::vector<TokenSequence> sequences{{{1, 2}, {3, 4}}, {{5}, {6}}};
  const TokenBatch batch = make_batch(sequences, 0);
  EXPECT_EQ(batch.rows, 2u);
  EXPECT_THAT(batch.ids, ElementsAre(1, 2, 3, 5, 0, 0));
  EXPECT_THAT(batch.sees, IsEmpty());
  expect_own_texts(batch, sequences);
}

TEST(MakeBatch, HasWhatAnswersOfOnePromptShareOnce) {
  const std::vector<TokenSequence> sequences{
      {{1, 2}, {3, 4, 9}}, {{1, 2}, {3, 5, 9}}, {{1, 2}, {3, 4, 9}}, {{1, 2}, {6, 9}}};
  const TokenBatch batch = make_batch(sequences, 0);
  EXPECT_EQ(batch.rows, 1u);
  EXPECT_THAT(batch.ids, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 3, 2));
  EXPECT_THAT(batch.places, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(batch.place_of, ElementsAre(0, 1, 2, 0, 1, 3, 0, 1, 2, 0, 4));
  expect_own_texts(batch, sequences);
}

TEST(MakeBatch, BeginsAnotherTreeBeforeOneGrowsTooLarge) {
  std::vector<TokenSequence> sequences;
  for (std::uint32_t i = 0; i < 8; ++i) sequences.push_back({{1}, Tokens(100, 2 + i)});
  const TokenBatch batch = make_batch(sequences, 0);
  EXPECT_LE(batch.width, 256u);
  expect_own_texts(batch, sequences);

  for (TokenSequence& sequence : sequences) sequence.answer.resize(300);
  EXPECT_THAT(make_batch(sequences, 0).sees, IsEmpty()) << "long answers are rows of their own";
}

TEST(MakeBatch, ShowsEachTokenItsOwnSequence) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const auto sequences = random_groups(random, 1 + random() % 9);
    const std::size_t row_tokens = random() % 2 * 32;
    expect_own_texts(make_batch(sequences, row_tokens), sequences);
  }
}

TEST(MakeJudgedBatch, ScoresEachSequenceAtItsEnd) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const auto sequences = random_groups(random, 1 + random() % 9);
    const TokenBatch batch = make_judged_batch(sequences);
    ASSERT_EQ(batch.place_of.size(), sequences.size());
    EXPECT_THAT(batch.targets, IsEmpty());
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      Tokens text = sequences[i].prompt;
      text.insert(text.end(), sequences[i].answer.begin(), sequences[i].answer.end());
      EXPECT_EQ(text_at(batch, place(batch, i)), text);
    }
  }
}

}  // namespace
}  // namespace weft
