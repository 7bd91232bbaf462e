#pragma once
// How something is said to people, on the terminal and in the log.

#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

// "1 block", "2 blocks".
std::string counted(std::uint64_t count, std::string_view noun);

// The text as one line that does nothing to a terminal: control characters and bytes that are no
// UTF-8 become \xNN.
std::string printable(std::string_view text);

}  // namespace weft
