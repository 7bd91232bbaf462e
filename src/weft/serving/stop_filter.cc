#include "weft/serving/stop_filter.h"

#include <algorithm>
#include <utility>

namespace weft {
namespace {

// The length of the longest end of `text` that is a beginning of `stop`, all of it excepted.
std::size_t overlap(std::string_view text, std::string_view stop) {
  for (std::size_t size = std::min(text.size(), stop.size() - 1); size > 0; --size) {
    if (text.ends_with(stop.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

std::string StopFilter::push(std::string_view piece, bool may_stop) {
  if (matched_) return "";
  const std::size_t old_size = held_.size();
  held_ += piece;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    // A match must end in the new piece.
    const std::size_t from = old_size < stop.size() ? 0 : old_size - stop.size() + 1;
    const std::size_t at = may_stop ? held_.find(stop, from) : std::string::npos;
    if (at < first) {
      first = at;
      matched_ = stop;
    }
  }
  if (matched_) {
    held_.resize(first + (keep_stop_ ? matched_->size() : 0));
    return std::exchange(held_, {});
  }
  std::size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, overlap(held_, stop));
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return certain;
}

std::string StopFilter::finish() {
  return std::exchange(held_, {});
}

}  // namespace weft
