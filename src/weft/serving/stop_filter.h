#pragma once
// StopFilter: passes generated text on and finds stop strings in it, also across pieces. Text that
// may turn out to be the beginning of a stop string is held back until that is decided. One thread.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

class StopFilter {
 public:
  // No stop is empty. With `keep_stop`, the text ends with the stop string, else before it.
  StopFilter(std::vector<std::string> stops, bool keep_stop)
      : stops_(std::move(stops)), keep_stop_(keep_stop) {}

  // Returns the text that is certain now. With `may_stop` false a stop string that ends in `piece`
  // is ordinary text. Of several that end in it the one that begins first counts. After a match:
  // "".
  std::string push(std::string_view piece, bool may_stop);
  // The text held back; "" after a match.
  std::string finish();
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  bool keep_stop_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace weft
