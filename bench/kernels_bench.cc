// Speed of the kernels on one thread. Weights come from a set too large for any cache, as in a
// forward pass; each case checks its own result. `read` says what memory gives at this moment:
// compare with it.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include "weft/kernels/attention.h"
#include "weft/kernels/convert.h"
#include "weft/kernels/matmul.h"
#include "weft/kernels/ops.h"
#include "weft/tensor/arena.h"

namespace weft::kernels {
namespace {

constexpr std::size_t kK = 1024;
constexpr std::size_t kN = 3072;
constexpr std::size_t kMatrixBytes = kK * kN * 2;
constexpr std::size_t kMatrices = 48;  // 300 MB

std::vector<float> random_floats(std::size_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = normal(generator);
  return out;
}

// kMatrices bf16 matrices, all the same.
std::span<const std::byte> all_weights() {
  static Arena arena = [] {
    Arena made = Arena::blocking_allocate(kMatrices * kMatrixBytes).value();
    const auto first = made.bytes().first(kMatrixBytes);
    const auto values = random_floats(kK * kN, 1);
    convert(std::as_bytes(std::span(values)), DType::kF32, first, DType::kBF16);
    for (std::size_t i = 1; i < kMatrices; ++i) {
      std::memcpy(made.bytes().data() + i * kMatrixBytes, first.data(), kMatrixBytes);
    }
    return made;
  }();
  return arena.bytes();
}

// A part of an arena as floats: aligned to a page.
std::span<float> floats_of(Arena& arena) {
  return {reinterpret_cast<float*>(arena.bytes().data()), arena.bytes().size() / sizeof(float)};
}

bool is_right(std::span<const float> a, std::span<const float> c, std::size_t rows) {
  std::vector<float> w(kK);
  for (std::size_t i = 0; i < 64; ++i) {
    const std::size_t row = i * 37 % rows;
    const std::size_t column = i * 911 % kN;
    convert_to_f32(all_weights().subspan(column * kK * 2, kK * 2), DType::kBF16, w);
    double sum = 0, size = 0;
    for (std::size_t k = 0; k < kK; ++k) {
      const double term = static_cast<double>(w[k]) * static_cast<double>(a[row * kK + k]);
      sum += term;
      size += std::abs(term);
    }
    if (!(std::abs(sum - static_cast<double>(c[row * kN + column])) < 1e-6 * size)) return false;
  }
  return true;
}

void rates(benchmark::State& state, double flops, double bytes) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] =
      benchmark::Counter(bytes / 1e9, benchmark::Counter::kIsIterationInvariantRate);
}

void matmul_bf16(benchmark::State& state, Summation summation) {
  const auto rows = static_cast<std::size_t>(state.range(0));
  const MatmulShape shape = {rows, kN, kK, DType::kBF16, summation};
  const auto a = random_floats(rows * kK, 2);
  Arena packed = Arena::blocking_allocate(packed_floats(shape) * sizeof(float)).value();
  Arena scratch = Arena::blocking_allocate(kMatmulScratchFloats * sizeof(float)).value();
  Arena c = Arena::blocking_allocate(rows * kN * sizeof(float)).value();
  const std::byte* weights = all_weights().data();
  std::size_t next = 0;
  for (auto _ : state) {
    pack_rows(shape, a, 0, rows, floats_of(packed));
    matmul(shape, floats_of(packed), weights + next * kMatrixBytes, {}, 0, kN, floats_of(c).data(),
           kN, floats_of(scratch));
    next = (next + 1) % kMatrices;
  }
  if (!is_right(a, floats_of(c), rows)) state.SkipWithError("wrong result");
  rates(state, 2.0 * static_cast<double>(rows) * kK * kN, kMatrixBytes);
}
void rows_args(benchmark::internal::Benchmark* bench) {
  for (const int rows : {1, 2, 4, 8, 12, 16, 32, 48, 96, 128, 512}) bench->Arg(rows);
  bench->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(matmul_bf16, fast, Summation::kFast)->Apply(rows_args);
BENCHMARK_CAPTURE(matmul_bf16, exact, Summation::kExact)->Apply(rows_args);

// What memory gives to one thread: a memory-bound matmul cannot beat it.
void read(benchmark::State& state) {
  const std::byte* at = all_weights().data();
  for (auto _ : state) {
    std::uint64_t sums[16] = {};
    for (std::size_t i = 0; i < kMatrices * kMatrixBytes; i += sizeof(sums)) {
      std::uint64_t words[16];
      std::memcpy(words, at + i, sizeof(words));
      for (std::size_t j = 0; j < 16; ++j) sums[j] ^= words[j];
    }
    benchmark::DoNotOptimize(sums);
  }
  rates(state, 0, static_cast<double>(kMatrices * kMatrixBytes));
}
BENCHMARK(read)->Unit(benchmark::kMillisecond);

void attention_f32(benchmark::State& state) {
  const auto positions = static_cast<std::size_t>(state.range(0));
  const auto tokens = static_cast<std::size_t>(state.range(1));  // the last ones
  const auto group = static_cast<std::size_t>(state.range(2));
  const std::size_t head_dim = 128;
  const KvLayout layout = {1, head_dim, 16};
  std::vector<std::uint32_t> pages(positions / 16);
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::uint32_t>(i);
  Arena arena =
      Arena::blocking_allocate(pages.size() * layout.page_floats() * sizeof(float)).value();
  const KvLayer layer = {layout, floats_of(arena).data()};
  const std::vector<float> ones(head_dim, 1.0f);
  for (std::size_t p = 0; p < positions; ++p) {
    store_kv(layer, pages[p / 16], p % 16, random_floats(head_dim, static_cast<std::uint32_t>(p)),
             ones);
  }
  auto queries = random_floats(tokens * group * head_dim, 2);
  for (auto _ : state) {
    attention(layer, pages, 0, 0.09f,
              {queries.data(), tokens, group * head_dim, group, positions - tokens});
    benchmark::DoNotOptimize(queries.data());
  }
  // All values are 1, so their weighted mean is.
  if (!std::ranges::all_of(queries, [](float x) { return std::abs(x - 1.0f) < 1e-5f; })) {
    state.SkipWithError("wrong result");
  }
  const auto size = static_cast<double>(positions * head_dim);
  rates(state, 4 * size * static_cast<double>(tokens * group), 8 * size);
}
BENCHMARK(attention_f32)
    ->ArgsProduct({{128, 1024, 8192}, {1, 16}, {1, 2, 4}})
    ->Unit(benchmark::kMicrosecond);

void log_sum_exp_vocabulary(benchmark::State& state) {
  const std::vector<float> logits(151'936, 1.0f);
  double result = 0;
  for (auto _ : state) benchmark::DoNotOptimize(result = log_sum_exp(logits));
  if (std::abs(result - 1.0 - std::log(151'936.0)) > 1e-6) state.SkipWithError("wrong result");
  rates(state, 0, 151'936 * 4.0);
}
BENCHMARK(log_sum_exp_vocabulary)->Unit(benchmark::kMicrosecond);

void silu_mul_row(benchmark::State& state) {
  const auto gate = random_floats(kN, 1);
  const auto up = random_floats(kN, 2);
  std::vector<float> out(kN);
  for (auto _ : state) {
    silu_mul(gate, up, out);
    benchmark::DoNotOptimize(out.data());
  }
  const double g = static_cast<double>(gate[7]);
  const double expected = g / (1 + std::exp(-g)) * static_cast<double>(up[7]);
  if (std::abs(static_cast<double>(out[7]) - expected) > 1e-6) state.SkipWithError("wrong result");
  rates(state, 0, kN * 12.0);
}
BENCHMARK(silu_mul_row);

void rms_norm_row(benchmark::State& state) {
  const auto x = random_floats(kK, 1);
  const std::vector<float> ones(kK, 1.0f);
  std::vector<float> out(kK);
  for (auto _ : state) {
    rms_norm(x, {std::as_bytes(std::span(ones)).data(), DType::kF32}, 1e-6f, out);
    benchmark::DoNotOptimize(out.data());
  }
  double squares = 0;
  for (const float v : out) squares += static_cast<double>(v) * static_cast<double>(v);
  if (std::abs(squares / kK - 1.0) > 1e-4) state.SkipWithError("wrong result");
  rates(state, 0, kK * 12.0);
}
BENCHMARK(rms_norm_row);

void convert_f32_to(benchmark::State& state, DType dtype) {
  const auto from = random_floats(1 << 20, 1);
  std::vector<std::byte> to(from.size() * dtype_size_bytes(dtype));
  for (auto _ : state) {
    convert(std::as_bytes(std::span(from)), DType::kF32, to, dtype);
    benchmark::DoNotOptimize(to.data());
  }
  std::vector<float> back(from.size());
  convert_to_f32(to, dtype, back);
  if (std::abs(back[5] - from[5]) > 0.005f * std::abs(from[5])) state.SkipWithError("wrong result");
  rates(state, 0, static_cast<double>(from.size() * 4 + to.size()));
}
BENCHMARK_CAPTURE(convert_f32_to, bf16, DType::kBF16)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(convert_f32_to, f16, DType::kF16)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace weft::kernels

BENCHMARK_MAIN();
