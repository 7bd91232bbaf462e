#include "weft/serving/version_history.h"

#include <algorithm>
#include <iterator>

#include <fmt/core.h>

namespace weft {

void VersionHistory::add(const VersionName& version) {
  entries_.with([&](std::deque<Entry>& entries) {
    const auto known = std::ranges::find(entries, version.id, &Entry::id);
    if (known != entries.end()) {
      entries.erase(std::next(known), entries.end());
    } else {
      entries.push_back({version.id, {}, ""});
      if (entries.size() > kRemembered) entries.pop_front();
    }
    entries.back().labels.insert(version.label);
    entries.back().label = version.label;
  });
}

Result<void> VersionHistory::check(std::string_view min_version) const {
  return entries_.with([&](const std::deque<Entry>& entries) -> Result<void> {
    const bool passed = std::ranges::any_of(entries, [&](const Entry& entry) {
      return entry.id == min_version || entry.labels.contains(min_version);
    });
    if (passed) return {};
    return Error(ErrorCode::kConflict,
                 fmt::format("min_version {} has not been reached here: {} ({}) is served",
                             min_version, entries.empty() ? "" : entries.back().label,
                             entries.empty() ? "nothing" : entries.back().id),
                 "min_version");
  });
}

}  // namespace weft
