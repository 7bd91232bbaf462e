#pragma once
// VersionHistory: which versions a server has come past, for requests that ask for at least one of
// them. Thread-safe.

#include <cstddef>
#include <deque>
#include <set>
#include <string>
#include <string_view>

#include "weft/base/guarded.h"
#include "weft/base/result.h"
#include "weft/tensor/weight_set.h"

namespace weft {

class VersionHistory {
 public:
  // So many versions are remembered, the newest ones.
  static constexpr std::size_t kRemembered = 4096;

  // `version` is what is served from now on: the newest one, also where its content was served
  // before. The content that is served already: its label alone is new.
  void add(const VersionName& version);
  // A rollback: `version` is served from now on, and what came after it when it was served last is
  // not passed any more. One that is not remembered is added.
  void go_back(const VersionName& version);
  // Has the server come at least to the version with this id, or with this label at some time?
  // Errors: kConflict naming what is served.
  Result<void> check(std::string_view min_version) const;

 private:
  struct Entry {
    std::string id;
    std::set<std::string, std::less<>> labels;  // all that it was called, the last one in `label`
    std::string label;
  };
  static void add_to(std::deque<Entry>& entries, const VersionName& version);

  Guarded<std::deque<Entry>> entries_;  // in the order in which they were served
};

}  // namespace weft
