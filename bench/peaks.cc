#include "peaks.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "peaks.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The exclusive or of all: something that has to be computed.
std::uint64_t read_all(const std::byte* p, std::size_t size_bytes) {
  const HWY_CAPPED(std::uint64_t, 8) d;
  const auto load = [&](std::size_t i) HWY_ATTR {
    return hn::LoadU(d, reinterpret_cast<const std::uint64_t*>(p + i));
  };
  const std::size_t step = hn::Lanes(d) * sizeof(std::uint64_t);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (std::size_t i = 0; i + 4 * step <= size_bytes; i += 4 * step) {
    a = hn::Xor(a, load(i));
    b = hn::Xor(b, load(i + step));
    c = hn::Xor(c, load(i + 2 * step));
    e = hn::Xor(e, load(i + 3 * step));
  }
  return hn::GetLane(hn::Xor(hn::Xor(a, b), hn::Xor(c, e)));
}

// `rounds` times ten FMAs that do not wait for each other: latency 4, two a cycle. Returns their
// flops.
double multiply(std::size_t rounds, float* out) {
  const HWY_CAPPED(float, 16) d;
  const auto x = hn::Set(d, 0.5f);
  const auto y = hn::Set(d, 1.0f);
  auto s0 = x, s1 = x, s2 = x, s3 = x, s4 = x, s5 = x, s6 = x, s7 = x, s8 = x, s9 = x;
  for (std::size_t i = 0; i < rounds; ++i) {
    s0 = hn::MulAdd(s0, x, y);
    s1 = hn::MulAdd(s1, x, y);
    s2 = hn::MulAdd(s2, x, y);
    s3 = hn::MulAdd(s3, x, y);
    s4 = hn::MulAdd(s4, x, y);
    s5 = hn::MulAdd(s5, x, y);
    s6 = hn::MulAdd(s6, x, y);
    s7 = hn::MulAdd(s7, x, y);
    s8 = hn::MulAdd(s8, x, y);
    s9 = hn::MulAdd(s9, x, y);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)),
                           hn::Add(hn::Add(s4, s5), hn::Add(hn::Add(s6, s7), hn::Add(s8, s9))));
  *out = hn::GetLane(sum);
  return static_cast<double>(rounds) * 10 * 2 * static_cast<double>(hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace weft::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::bench {
namespace {

HWY_EXPORT(read_all);
HWY_EXPORT(multiply);

// Results go here, so that no compiler leaves the work out.
std::atomic<std::uint64_t> unused = 0;

// Calls work(thread) on so many threads; the seconds until all are done.
template <typename Work>
double blocking_seconds(unsigned threads, Work work) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back(work, i);
  work(0u);
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

double blocking_read_rate(std::span<const std::byte> bytes, unsigned threads) {
  constexpr int kTimes = 8;  // what memory gives for some 0.3 s, not in a burst
  const std::size_t part = bytes.size() / threads;
  const double seconds = blocking_seconds(threads, [&](unsigned i) {
    for (int time = 0; time < kTimes; ++time) {
      unused += HWY_DYNAMIC_DISPATCH(read_all)(bytes.data() + i * part, part);
    }
  });
  return kTimes * static_cast<double>(part * threads) / seconds;
}

double blocking_flop_rate(unsigned threads) {
  constexpr std::size_t kRounds = 8'000'000;  // five cycles each
  std::vector<double> flops(threads);
  const double seconds = blocking_seconds(threads, [&](unsigned i) {
    float result = 0;
    flops[i] = HWY_DYNAMIC_DISPATCH(multiply)(kRounds, &result);
    unused += static_cast<std::uint64_t>(result);
  });
  double total = 0;
  for (const double of_one : flops) total += of_one;
  return total / seconds;
}

}  // namespace weft::bench
#endif  // HWY_ONCE
