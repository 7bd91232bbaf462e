#include "weft/base/log.h"

#include <memory>

#include <pthread.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "weft/base/wording.h"

namespace weft {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = spdlog::stderr_color_mt("weft");
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%L%$ %v");
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  logger().set_level(to_spdlog(level));
}

void log_line(LogLevel level, std::string_view line) {
  logger().log(to_spdlog(level), printable(line));
}

void set_thread_name(const char* name) {
  pthread_setname_np(pthread_self(), name);
}

}  // namespace weft
