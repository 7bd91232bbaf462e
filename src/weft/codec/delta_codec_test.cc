#include "weft/codec/delta_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "weft/codec/delta_pairs_test.h"
#include "weft/digest/digest.h"

namespace weft {
namespace {

using delta_test::Bytes;

// Both ways to use a payload give `next`, and the patch can be undone.
void expect_payload(const Bytes& payload, const Bytes& base, const Bytes& next, ElemKind kind) {
  EXPECT_LE(payload.size(), next.size() + kDeltaFrameBytes);
  Bytes block(base.size(), std::byte{0xA5});
  const auto decoded = decode_delta(payload, base, kind, block);
  ASSERT_TRUE(decoded) << decoded.error().message();
  ASSERT_TRUE(block == next);

  const auto patch = resolve_delta(payload, base, kind);
  ASSERT_TRUE(patch) << patch.error().message();
  const SparsePatch view = patch->view(kind);
  block = base;
  ASSERT_TRUE(check_sparse_base(view, block));
  Bytes undo;
  apply_sparse(view, block, &undo);
  ASSERT_TRUE(block == next);
  const std::size_t elem_bytes = elem_size_bytes(kind);
  const DeltaPatch found = find_patch(base, next, elem_bytes);
  EXPECT_EQ(found.positions, patch->positions);
  EXPECT_EQ(found.values, patch->values);
  EXPECT_EQ(found.old_values_digest, patch->old_values_digest);
  for (std::size_t i = 0; i < view.count; ++i) {
    std::memcpy(block.data() + view.position(i) * elem_bytes, undo.data() + i * elem_bytes,
                elem_bytes);
  }
  EXPECT_TRUE(block == base);
}

void expect_round_trip(const Bytes& base, const Bytes& next, ElemKind kind) {
  expect_payload(encode_delta(base, next, kind), base, next, kind);
  expect_payload(encode_delta(base, next, kind, DeltaGoal::kFast), base, next, kind);
}

DeltaForm form_of(const Bytes& payload, std::size_t block_bytes, ElemKind kind) {
  const auto header = read_delta_header(payload, block_bytes, kind);
  EXPECT_TRUE(header) << header.error().message();
  return header->form;
}

class DeltaSweep : public testing::TestWithParam<std::tuple<ElemKind, std::size_t, double>> {};

TEST_P(DeltaSweep, SmallStepsComeBack) {
  const auto [kind, elements, density] = GetParam();
  const auto [base, next] = delta_test::small_steps(kind, elements, density, 1);
  expect_round_trip(base, next, kind);
}

TEST_P(DeltaSweep, AnyBitsComeBack) {
  const auto [kind, elements, density] = GetParam();
  const auto [base, next] = delta_test::any_bits(kind, elements, density, 2);
  expect_round_trip(base, next, kind);
}

INSTANTIATE_TEST_SUITE_P(Sweep, DeltaSweep,
                         testing::Combine(testing::ValuesIn(delta_test::kKinds),
                                          testing::Values(1, 2, 63, 64, 65, 255, 256, 257, 4095,
                                                          4097, 20'000),
                                          testing::Values(0.0, 0.001, 0.02, 0.3, 1.0)));

TEST(DeltaForms, NothingChangedIsTheFrameAlone) {
  const auto [base, next] = delta_test::small_steps(ElemKind::kBF16, 1000, 0, 3);
  const Bytes payload = encode_delta(base, next, ElemKind::kBF16);
  EXPECT_EQ(payload.size(), kDeltaFrameBytes);
  EXPECT_EQ(form_of(payload, base.size(), ElemKind::kBF16), DeltaForm::kSparse);
}

TEST(DeltaForms, AnEmptyBlockHasADelta) {
  expect_round_trip({}, {}, ElemKind::kBF16);
}

TEST(DeltaForms, FewChangesAreSparse) {
  const auto [base, next] = delta_test::small_steps(ElemKind::kBF16, 100'000, 0.01, 4);
  const Bytes payload = encode_delta(base, next, ElemKind::kBF16);
  EXPECT_EQ(form_of(payload, base.size(), ElemKind::kBF16), DeltaForm::kSparse);
  EXPECT_LT(payload.size(), 100'000u * 2 / 80);
}

TEST(DeltaForms, FewChangesArePlainWhereThatIsTheGoal) {
  constexpr std::size_t kElements = 100'000;
  for (const double density : {0.001, 0.05, 0.3}) {
    const auto [base, next] = delta_test::small_steps(ElemKind::kBF16, kElements, density, 17);
    const Bytes payload = encode_delta(base, next, ElemKind::kBF16, DeltaGoal::kFast);
    const bool is_plain = form_of(payload, base.size(), ElemKind::kBF16) == DeltaForm::kPlain;
    EXPECT_EQ(is_plain, density < 0.1) << density;
    const auto header = read_delta_header(payload, base.size(), ElemKind::kBF16);
    // A byte for a short gap, five for a long one, and the value.
    if (is_plain) {
      EXPECT_LE(payload.size(), kDeltaFrameBytes + 7 * header->changed);
    }
  }
}

TEST(DeltaForms, WhatHasNothingToDoWithItsBaseIsIdentity) {
  const auto [base, next] = delta_test::any_bits(ElemKind::kBits8, 100'000, 1, 5);
  const Bytes payload = encode_delta(base, next, ElemKind::kBits8);
  EXPECT_EQ(payload.size(), next.size() + kDeltaFrameBytes);
  EXPECT_EQ(form_of(payload, base.size(), ElemKind::kBits8), DeltaForm::kIdentity);
}

TEST(DeltaForms, ARepetitiveBlockIsZstd) {
  const Bytes base = delta_test::any_bits(ElemKind::kBF16, 100'000, 0, 6).first;
  Bytes next;
  for (int i = 0; i < 100; ++i) next.insert(next.end(), base.begin(), base.begin() + 2000);
  expect_round_trip(base, next, ElemKind::kBF16);
  EXPECT_EQ(form_of(encode_delta(base, next, ElemKind::kBF16), base.size(), ElemKind::kBF16),
            DeltaForm::kZstd);
}

TEST(DeltaForms, ARepetitiveDifferenceIsDense) {
  const Bytes base = delta_test::any_bits(ElemKind::kBits16, 100'000, 0, 7).first;
  Bytes next = base;
  for (std::byte& b : next) b ^= std::byte{0x55};
  expect_round_trip(base, next, ElemKind::kBits16);
  EXPECT_EQ(form_of(encode_delta(base, next, ElemKind::kBits16), base.size(), ElemKind::kBits16),
            DeltaForm::kDense);
}

TEST(Delta, SpecialFloatsBecomeEachOther) {
  for (const ElemKind kind : delta_test::kKinds) {
    const std::size_t elem_bytes = elem_size_bytes(kind);
    const std::uint64_t sign = std::uint64_t{1} << (8 * elem_bytes - 1);
    std::vector<std::uint64_t> specials;
    for (const std::uint64_t magnitude : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2},
                                          sign / 2, sign - 1, sign - 2, sign - sign / 16}) {
      specials.push_back(magnitude);
      specials.push_back(magnitude | sign);
    }
    const std::size_t n = specials.size();
    Bytes base(n * n * elem_bytes), next(n * n * elem_bytes);
    for (std::size_t i = 0; i < n * n; ++i) {
      delta_test::set_element(base, i, elem_bytes, specials[i / n]);
      delta_test::set_element(next, i, elem_bytes, specials[i % n]);
    }
    expect_round_trip(base, next, kind);
  }
}

TEST(Delta, RunsAndRowsComeBack) {
  for (const std::size_t run : {1u, 31u, 300u, 5000u}) {
    const Bytes base = delta_test::small_steps(ElemKind::kBF16, 50'000, 0, 8).first;
    Bytes next = base;
    for (std::size_t i = 0; i < 50'000; ++i) {
      if (i / run % 7 == 0) next[2 * i] ^= std::byte{1};
    }
    expect_round_trip(base, next, ElemKind::kBF16);
  }
}

// As RL changes bf16 weights: the likelier the smaller they are, mostly by one place.
TEST(Delta, IsNearTheEntropyOfTheChangesGivenTheExponents) {
  constexpr std::size_t kElements = 1 << 20;
  Bytes base = delta_test::small_steps(ElemKind::kBF16, kElements, 0, 15).first;
  Bytes next = base;
  std::mt19937_64 random(16);
  std::array<double, 256> all{}, changed{};
  double bits = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    const std::uint64_t old = delta_test::element_at(base, i, 2);
    const std::size_t exponent = old >> 7 & 255;
    ++all[exponent];
    const double share = std::min(0.5, std::ldexp(0.04, 118 - static_cast<int>(exponent)));
    if (!std::bernoulli_distribution(share)(random)) continue;
    ++changed[exponent];
    bits += 1;  // one place up or down
    delta_test::set_element(next, i, 2, random() % 2 == 0 ? old + 1 : old - 1);
  }
  double total = 0;
  for (std::size_t e = 0; e < all.size(); ++e) {
    total += changed[e];
    for (const double n : {changed[e], all[e] - changed[e]}) {
      if (n > 0) bits += n * std::log2(all[e] / n);
    }
  }
  ASSERT_GT(total, 10'000);
  EXPECT_LT(static_cast<double>(encode_delta(base, next, ElemKind::kBF16).size()), 1.1 * bits / 8);
}

TEST(Delta, TheResultDoesNotDependOnThreads) {
  const auto pair = delta_test::small_steps(ElemKind::kBF16, 100'000, 0.02, 9);
  const Bytes expected = encode_delta(pair.first, pair.second, ElemKind::kBF16);
  std::vector<Bytes> payloads(4);
  std::vector<std::thread> threads;
  for (Bytes& payload : payloads) {
    threads.emplace_back([&] { payload = encode_delta(pair.first, pair.second, ElemKind::kBF16); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Bytes& payload : payloads) EXPECT_TRUE(payload == expected);
}

// --- wrong input

void sign(Bytes& payload) {
  const auto covered = std::span(payload).first(payload.size() - kDeltaDigestBytes);
  std::copy_n(digest_of(covered).bytes.begin(), kDeltaDigestBytes, payload.data() + covered.size());
}

// One small pair for each form, with its payload; of the plain form one with a long gap, too.
struct FormCase {
  Bytes base, next;
  DeltaForm form = DeltaForm::kIdentity;
  Bytes payload{};
};
std::vector<FormCase> one_of_each_form() {
  const Bytes noise = delta_test::any_bits(ElemKind::kBF16, 150, 0, 10).first;
  Bytes flipped = noise;
  for (std::byte& b : flipped) b ^= std::byte{0x55};
  const auto [base, next] = delta_test::small_steps(ElemKind::kBF16, 150, 0.2, 11);
  const Bytes long_base = delta_test::small_steps(ElemKind::kBF16, 1000, 0, 18).first;
  Bytes long_next = long_base;
  for (const std::size_t at : {3u, 600u, 1998u}) long_next[at] ^= std::byte{1};
  const auto [few, few_next] = delta_test::small_steps(ElemKind::kBF16, 150, 0.05, 19);
  std::vector<FormCase> cases = {{Bytes(300), noise},
                                 {noise, Bytes(300, std::byte{7}), DeltaForm::kZstd},
                                 {noise, flipped, DeltaForm::kDense},
                                 {base, next, DeltaForm::kSparse},
                                 {few, few_next, DeltaForm::kPlain},
                                 {long_base, long_next, DeltaForm::kPlain}};
  for (FormCase& it : cases) {
    const bool is_plain = it.form == DeltaForm::kPlain;
    it.payload = encode_delta(it.base, it.next, ElemKind::kBF16,
                              is_plain ? DeltaGoal::kFast : DeltaGoal::kSmall);
    EXPECT_EQ(form_of(it.payload, it.base.size(), ElemKind::kBF16), it.form);
  }
  return cases;
}

TEST(DeltaInput, EveryWrongByteIsAnError) {
  for (const auto& [base, next, form, payload] : one_of_each_form()) {
    Bytes block(base.size());
    for (std::size_t at = 0; at < payload.size(); ++at) {
      for (const unsigned flip : {1u, 2u, 0x10u, 0x80u, 0xFFu}) {
        Bytes wrong = payload;
        wrong[at] ^= static_cast<std::byte>(flip);
        const auto done = decode_delta(wrong, base, ElemKind::kBF16, block);
        ASSERT_FALSE(done) << at;
        EXPECT_EQ(done.error().code(), at == 0 ? ErrorCode::kUnsupported : ErrorCode::kCorrupt);
      }
    }
  }
}

TEST(DeltaInput, EveryTruncationAndEveryByteTooManyIsAnError) {
  for (const auto& [base, next, form, whole] : one_of_each_form()) {
    Bytes payload = whole;
    Bytes block(base.size());
    for (std::size_t size = 0; size < payload.size(); ++size) {
      EXPECT_FALSE(decode_delta(std::span(payload).first(size), base, ElemKind::kBF16, block));
      Bytes cut(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(size));
      if (size < kDeltaFrameBytes) continue;
      sign(cut);  // so that it is the decoder that finds it
      EXPECT_FALSE(decode_delta(cut, base, ElemKind::kBF16, block)) << size;
    }
    payload.insert(payload.end() - kDeltaDigestBytes, std::byte{0});
    sign(payload);
    EXPECT_FALSE(decode_delta(payload, base, ElemKind::kBF16, block));
  }
}

TEST(DeltaInput, EveryWrongByteUnderARightDigestIsAnErrorOrStaysInsideTheBlock) {
  for (const auto& [base, next, form, payload] : one_of_each_form()) {
    for (std::size_t at = 0; at < payload.size() - kDeltaDigestBytes; ++at) {
      for (unsigned flip = 1; flip < 256; ++flip) {
        Bytes wrong = payload;
        wrong[at] ^= static_cast<std::byte>(flip);
        sign(wrong);
        Bytes block(base.size());  // ASan watches its ends
        static_cast<void>(decode_delta(wrong, base, ElemKind::kBF16, block));
        const auto patch = resolve_delta(wrong, base, ElemKind::kBF16);
        if (patch) apply_sparse(patch->view(ElemKind::kBF16), block);
      }
    }
  }
}

TEST(DeltaInput, AnyBodyUnderARightDigestIsAnErrorOrStaysInsideTheBlock) {
  std::mt19937 random(12);
  const Bytes base = delta_test::small_steps(ElemKind::kBF16, 300, 0, 13).first;
  Bytes next = base;
  next[0] ^= std::byte{1};
  const Bytes payload = encode_delta(base, next, ElemKind::kBF16);
  for (int round = 0; round < 20'000; ++round) {
    Bytes wrong(payload.begin(), payload.begin() + kDeltaHeaderBytes);
    const auto changed = static_cast<std::uint32_t>(random() % 301);
    std::memcpy(wrong.data() + 8, &changed, 4);
    wrong.resize(kDeltaFrameBytes + random() % 200);
    for (std::size_t i = kDeltaHeaderBytes; i < wrong.size(); ++i) {
      wrong[i] = static_cast<std::byte>(random() % (round % 2 == 0 ? 256 : 8));
    }
    sign(wrong);
    Bytes block(base.size());
    EXPECT_FALSE(decode_delta(wrong, base, ElemKind::kBF16, block));
  }
}

TEST(DeltaInput, APlainBodyThatBreaksARuleIsRefused) {
  const auto plain = one_of_each_form().back();  // gaps of 1, 298 and 698
  const auto refusal = [&](std::size_t at, Bytes with, std::size_t replaced) {
    Bytes wrong = plain.payload;
    const auto place = wrong.begin() + kDeltaHeaderBytes + static_cast<std::ptrdiff_t>(at);
    wrong.insert(wrong.erase(place, place + static_cast<std::ptrdiff_t>(replaced)), with.begin(),
                 with.end());
    sign(wrong);
    Bytes block(plain.base.size());
    const auto done = decode_delta(wrong, plain.base, ElemKind::kBF16, block);
    const auto patch = resolve_delta(wrong, plain.base, ElemKind::kBF16);
    EXPECT_FALSE(done);
    EXPECT_FALSE(patch);
    return done || patch ? "" : std::string(patch.error().message());
  };
  EXPECT_EQ(refusal(0, {std::byte{0xFF}}, 1), "plain: 17 bytes for 3 changes, 3 far away");
  EXPECT_EQ(refusal(1, {std::byte{9}}, 1), "plain: 17 bytes for 3 changes, 1 far away");
  const std::string rule = "plain: a change outside the block, or a short gap as a long";
  EXPECT_EQ(refusal(3, {std::byte{0xFE}, std::byte{0}}, 2), rule);     // short
  EXPECT_EQ(refusal(7, {std::byte{0xBB}, std::byte{0x02}}, 2), rule);  // one past the end
  EXPECT_EQ(refusal(0, {std::byte{0}}, 1), "delta: the base is not what it was made against");
  // It becomes what it was.
  EXPECT_EQ(refusal(11, {plain.base[2], plain.base[3]}, 2),
            "delta: the base is not what it was made against");
}

TEST(DeltaInput, AnotherBaseIsNoticed) {
  for (const auto& [base, next, form, payload] : one_of_each_form()) {
    if (read_delta_header(payload, base.size(), ElemKind::kBF16)->changed == 0) continue;
    Bytes block(base.size());
    const auto applied_before = decode_delta(payload, next, ElemKind::kBF16, block);
    ASSERT_FALSE(applied_before);
    EXPECT_EQ(applied_before.error().code(), ErrorCode::kConflict);
    const auto zeros = resolve_delta(payload, Bytes(base.size()), ElemKind::kBF16);
    ASSERT_FALSE(zeros);
    EXPECT_EQ(zeros.error().code(), ErrorCode::kConflict);
  }
}

TEST(DeltaInput, AnotherShapeOrKindIsRefusedByName) {
  const auto [base, next] = delta_test::small_steps(ElemKind::kBF16, 100, 0.1, 14);
  const Bytes payload = encode_delta(base, next, ElemKind::kBF16);
  EXPECT_EQ(read_delta_header(payload, 202, ElemKind::kBF16).error().message(),
            "delta: of 100 elements, the block has 101");
  EXPECT_EQ(read_delta_header(payload, 200, ElemKind::kF16).error().message(),
            "delta: elements of kind 4, the tensor's are 5");
}

}  // namespace
}  // namespace weft
