#include "weft/protocol/label.h"

#include <fmt/core.h>

#include "weft/base/utf8.h"

namespace weft {

Result<void> check_label(std::string_view label) {
  if (label.size() > kMaxLabelBytes) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("the label has {} bytes, at most {}", label.size(), kMaxLabelBytes),
                 "label");
  }
  if (!is_utf8(label)) return Error(ErrorCode::kInvalidArgument, "the label is no UTF-8", "label");
  return {};
}

}  // namespace weft
