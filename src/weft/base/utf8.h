#pragma once
// What is text: UTF-8 as RFC 3629 has it.

#include <string_view>

namespace weft {

// False for what is cut off, overlong, a surrogate or past U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace weft
