#pragma once
// The log: one line an event on standard error, with time and level. Thread-safe.

#include <string_view>

#include <fmt/core.h>

namespace weft {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Sets what is printed from now on. Default: kInfo.
void set_log_level(LogLevel level);
// What is in the line that could act on a terminal, or be a line of its own, is escaped.
void log_line(LogLevel level, std::string_view line);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

// Names the calling thread as `top -H` shows it (at most 15 bytes). docs/threads.md lists all
// names.
void set_thread_name(const char* name);

}  // namespace weft
