#pragma once
// Owned results of the Rust library as C++ values.

#include <string>

#include "weft/base/error.h"
#include "weft_rust.h"

namespace weft {

// Copies and frees.
inline std::string take_text(WeftText text) {
  std::string copy(text.data, text.size);
  weft_text_free(text);
  return copy;
}

inline Error rust_error(const char* what, WeftText reason) {
  return {ErrorCode::kInvalidArgument, std::string(what) + ": " + take_text(reason)};
}

}  // namespace weft
