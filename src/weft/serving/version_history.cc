#include "weft/serving/version_history.h"

#include <algorithm>

#include <fmt/core.h>

namespace weft {

void VersionHistory::add(const VersionName& version) {
  entries_.with([&](std::deque<Entry>& entries) { add_to(entries, version); });
}

void VersionHistory::go_back(const VersionName& version) {
  entries_.with([&](std::deque<Entry>& entries) {
    const auto last = std::find_if(entries.rbegin(), entries.rend(),
                                   [&](const Entry& entry) { return entry.id == version.id; });
    if (last != entries.rend()) entries.erase(last.base(), entries.end());
    add_to(entries, version);
  });
}

void VersionHistory::add_to(std::deque<Entry>& entries, const VersionName& version) {
  if (entries.empty() || entries.back().id != version.id) {
    entries.push_back({version.id, {}, ""});
    if (entries.size() > kRemembered) entries.pop_front();
  }
  entries.back().labels.insert(version.label);
  entries.back().label = version.label;
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
