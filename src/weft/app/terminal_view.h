#pragma once
// TerminalView: lines that stay, and below them a block that is written again and again. Where
// standard output is no terminal there are only the lines. Thread-safe.

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>

namespace weft {

class TerminalView {
 public:
  TerminalView();

  bool is_terminal() const { return is_terminal_; }
  // A line that stays, above the block.
  void print(std::string_view line);
  // Shows these lines in place of those shown before. Requires: is_terminal().
  void show(std::string_view block);
  // What is shown stays where it is.
  void leave();

 private:
  void erase_block();
  void write(std::string_view text);

  const bool is_terminal_;
  std::mutex mutex_;  // of what follows, and of standard output
  std::string block_;
  std::size_t shown_lines_ = 0;
};

}  // namespace weft
