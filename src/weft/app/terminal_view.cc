#include "weft/app/terminal_view.h"

#include <algorithm>
#include <cstdio>

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace weft {
namespace {

std::size_t terminal_columns() {
  winsize size{};
  const bool is_known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

// The first `columns` characters of a line in UTF-8, each taken as one column wide.
std::string_view cut(std::string_view line, std::size_t columns) {
  std::size_t end = 0;
  while (end < line.size()) {
    const bool begins_character = (static_cast<unsigned char>(line[end]) & 0xC0) != 0x80;
    if (begins_character && columns-- == 0) break;
    ++end;
  }
  return line.substr(0, end);
}

}  // namespace

TerminalView::TerminalView() : is_terminal_(::isatty(STDOUT_FILENO) == 1) {}

void TerminalView::print(std::string_view line) {
  const std::lock_guard lock(mutex_);
  erase_block();
  write(fmt::format("{}\n", line));
  if (!block_.empty()) {
    write(block_);
    shown_lines_ = static_cast<std::size_t>(std::ranges::count(block_, '\n'));
  }
}

void TerminalView::show(std::string_view block) {
  const std::lock_guard lock(mutex_);
  erase_block();
  // A line that wraps would be two to erase.
  const std::size_t columns = terminal_columns();
  block_.clear();
  while (!block.empty()) {
    const std::size_t end = std::min(block.find('\n'), block.size() - 1);
    block_ += fmt::format("{}\n", cut(block.substr(0, end), columns - 1));
    block.remove_prefix(end + 1);
  }
  write(block_);
  shown_lines_ = static_cast<std::size_t>(std::ranges::count(block_, '\n'));
}

void TerminalView::leave() {
  const std::lock_guard lock(mutex_);
  block_.clear();
  shown_lines_ = 0;
}

void TerminalView::erase_block() {
  // Source: ECMA-48, CPL (cursor to a line above) and ED (erase to the end).
  if (shown_lines_ > 0) write(fmt::format("\x1b[{}F\x1b[J", shown_lines_));
  shown_lines_ = 0;
}

void TerminalView::write(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);  // also into a pipe, line by line
}

}  // namespace weft
