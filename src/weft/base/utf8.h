#pragma once
// What is text: UTF-8 as RFC 3629 has it.

#include <cstddef>
#include <string_view>

namespace weft {

// How many bytes at the front of `text` are one character; 0: they are none, or there are none.
std::size_t utf8_sequence_bytes(std::string_view text);

// False for what is cut off, overlong, a surrogate or past U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace weft
