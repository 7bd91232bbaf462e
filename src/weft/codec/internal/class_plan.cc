#include "weft/codec/internal/class_plan.h"

#include <algorithm>
#include <bit>

namespace weft::internal {
namespace {

// Costs are in 1/65536 bit.
constexpr std::int64_t kBit = 1 << 16;

std::int64_t n_log_n(std::uint64_t n) {
  return n == 0 ? 0 : static_cast<std::int64_t>(n * log2_fixed(n));
}

struct Candidate {
  unsigned first_key = 0;
  KeyStatistics statistics;
  unsigned used_steps = 0;  // symbols below this came
  std::int64_t cost = 0;
  std::int64_t merged_cost = 0;  // of this and the next as one
};

std::int64_t cost_of(const KeyStatistics& a, unsigned used_steps) {
  const std::uint64_t k = a.changed;
  if (k == 0) return (8 + 5) * kBit;                                      // a bound and a count
  std::int64_t cost = n_log_n(a.population) - n_log_n(a.population - k);  // which: less n_log_n(k)
  for (unsigned s = 0; s < used_steps; ++s) {                             // by how much, and that
    cost += a.steps[s] * kOctaves[s].extra_bits * kBit - n_log_n(a.steps[s]);
  }
  // The longest gap is a few times the mean one.
  const unsigned last_gap = symbol_of(8 * a.population / k);
  const auto frame = 8 + 5 + static_cast<std::uint64_t>(std::bit_width(k)) + table_bits(last_gap) +
                     table_bits(used_steps - 1);
  return cost + static_cast<std::int64_t>(frame) * kBit;
}

void add(KeyStatistics& to, const KeyStatistics& from, unsigned used_steps) {
  to.population += from.population;
  to.changed += from.changed;
  for (unsigned s = 0; s < used_steps; ++s) to.steps[s] += from.steps[s];
}

void price_merge(Candidate& a, const Candidate& b) {
  KeyStatistics both = a.statistics;
  add(both, b.statistics, b.used_steps);
  a.merged_cost = cost_of(both, std::max(a.used_steps, b.used_steps));
}

// One for each key that occurs; the first begins at key 0.
std::vector<Candidate> candidates_of(std::span<const KeyStatistics, kKeys> keys) {
  std::vector<Candidate> all;
  for (unsigned key = 0; key < kKeys; ++key) {
    if (keys[key].population == 0) continue;
    Candidate& a = all.emplace_back();
    a.first_key = all.size() == 1 ? 0 : key;
    a.statistics = keys[key];
    for (unsigned s = 0; s < kSymbols; ++s) {
      if (a.statistics.steps[s] != 0) a.used_steps = s + 1;
    }
    a.cost = cost_of(a.statistics, a.used_steps);
  }
  for (std::size_t i = 0; i + 1 < all.size(); ++i) price_merge(all[i], all[i + 1]);
  return all;
}

// Each class takes both sides time, about as much as this share of the bytes is worth.
constexpr std::int64_t kShareOfClass = 512;

// The pair whose merging costs least, and how much.
std::pair<std::size_t, std::int64_t> best_merge(const std::vector<Candidate>& all) {
  std::size_t best = 0;
  std::int64_t least = INT64_MAX;
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    const std::int64_t loss = all[i].merged_cost - all[i].cost - all[i + 1].cost;
    if (loss < least) least = loss, best = i;
  }
  return {best, least};
}

}  // namespace

ClassPlan plan_classes(std::span<const KeyStatistics, kKeys> keys) {
  std::vector<Candidate> all = candidates_of(keys);
  std::int64_t tolerated_loss = 0;
  for (const Candidate& a : all) tolerated_loss += a.cost / kShareOfClass;
  while (all.size() > 1) {
    const auto [i, loss] = best_merge(all);
    if (all.size() <= kMostClasses && loss > tolerated_loss) break;
    Candidate& a = all[i];
    add(a.statistics, all[i + 1].statistics, all[i + 1].used_steps);
    a.used_steps = std::max(a.used_steps, all[i + 1].used_steps);
    a.cost = a.merged_cost;
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    if (i + 1 < all.size()) price_merge(a, all[i + 1]);
    if (i > 0) price_merge(all[i - 1], a);
  }
  ClassPlan plan;
  plan.classes.classes = std::max<std::size_t>(all.size(), 1);
  std::int64_t cost = 0;
  for (std::size_t c = 0; c < all.size(); ++c) {
    if (c > 0) plan.classes.bounds[c - 1] = static_cast<std::uint8_t>(all[c].first_key);
    cost += all[c].cost;
  }
  plan.body_bytes = static_cast<std::uint64_t>(cost) / kBit / 8 + sizeof(std::uint32_t) * kStates;
  return plan;
}

}  // namespace weft::internal
