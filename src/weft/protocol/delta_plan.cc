#include "weft/protocol/delta_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

namespace weft {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

std::uint64_t saturated_sum(std::uint64_t a, std::uint64_t b) {
  return a > kMost - b ? kMost : a + b;
}

struct Cost {
  std::uint64_t bytes = 0, steps = 0;

  bool operator<(const Cost& other) const {
    return std::tie(bytes, steps) < std::tie(other.bytes, other.steps);
  }
};

// How a version is reached: its cost, and the last step.
struct Way {
  Cost cost;
  std::optional<std::size_t> offer;  // none: it is at hand
};

}  // namespace

// Dijkstra's algorithm; what has no base leaves from the empty id, which is always at hand.
std::optional<TransferPlan> try_plan_transfer(std::span<const TransferOffer> offers,
                                              const std::set<std::string>& have,
                                              const std::string& want) {
  const auto from = [&](std::size_t i) -> std::string_view {
    return offers[i].base ? std::string_view(*offers[i].base) : std::string_view();
  };
  std::multimap<std::string_view, std::size_t> leaving;
  for (std::size_t i = 0; i < offers.size(); ++i) leaving.emplace(from(i), i);
  std::map<std::string_view, Way> ways;
  std::set<std::pair<Cost, std::string_view>> open;
  const auto reach = [&](std::string_view id, const Way& way) {
    const auto [found, is_new] = ways.emplace(id, way);
    if (!is_new && !(way.cost < found->second.cost)) return;
    if (!is_new) open.erase({found->second.cost, id});
    found->second = way;
    open.emplace(way.cost, id);
  };
  reach("", {});
  for (const std::string& id : have) reach(id, {});
  while (!open.empty() && open.begin()->second != want) {
    const auto [cost, id] = *open.begin();
    open.erase(open.begin());
    const auto [begin, end] = leaving.equal_range(id);
    for (auto each = begin; each != end; ++each) {
      const TransferOffer& offer = offers[each->second];
      reach(offer.id, {{saturated_sum(cost.bytes, offer.bytes), cost.steps + 1}, each->second});
    }
  }
  const auto reached = ways.find(want);
  if (reached == ways.end() || want.empty()) return std::nullopt;
  TransferPlan plan;
  plan.bytes = reached->second.cost.bytes;
  for (const Way* way = &reached->second; way->offer; way = &ways.at(from(*way->offer))) {
    plan.steps.push_back(*way->offer);
  }
  std::reverse(plan.steps.begin(), plan.steps.end());
  return plan;
}

}  // namespace weft
