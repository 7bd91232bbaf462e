#pragma once
// The cheapest way to a version from what is at hand, by the deltas and whole versions on offer.
// Pure.

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace weft {

// One thing that can be fetched: version `id` out of version `base`, or whole where there is none.
struct TransferOffer {
  std::string id;
  std::optional<std::string> base;
  std::uint64_t bytes = 0;  // all that is sent: index and packs, or the version's data
};

struct TransferPlan {
  std::vector<std::size_t> steps;  // offers, by their number, in order; none: it is at hand
  std::uint64_t bytes = 0;         // of all steps together; the largest number stands for more

  bool operator==(const TransferPlan&) const = default;
};

// The plan with the fewest bytes; of several the one with the fewest steps, of these the one whose
// offers come first. Nothing when no way leads there. Offers may have holes and loops, and name
// versions that nothing else does. Time: O(offers * log(offers)).
std::optional<TransferPlan> try_plan_transfer(std::span<const TransferOffer> offers,
                                              const std::set<std::string>& have,
                                              const std::string& want);

}  // namespace weft
