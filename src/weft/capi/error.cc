// Codes and words of errors; the log; the library's version.

#include <array>
#include <string>

#include "weft/base/log.h"
#include "weft/capi/internal/handles.h"

namespace weft::capi {
namespace {

// Each thread has its own.
thread_local std::string last_message;
thread_local std::string callback_message;

// weft_code is ErrorCode, moved by one.
constexpr int kOffset = 1;
static_assert(static_cast<int>(ErrorCode::kInvalidArgument) + kOffset == WEFT_INVALID_ARGUMENT);
static_assert(static_cast<int>(ErrorCode::kPreconditionFailed) + kOffset ==
              WEFT_PRECONDITION_FAILED);
static_assert(static_cast<int>(ErrorCode::kCorrupt) + kOffset == WEFT_CORRUPT);
static_assert(static_cast<int>(ErrorCode::kInternal) + kOffset == WEFT_INTERNAL);

// Quiet until it is told otherwise, also if it is told before anything is opened.
[[maybe_unused]] const bool kQuiet = (set_log_level(LogLevel::kWarning), true);

bool is_error(weft_code code) {
  return code >= WEFT_INVALID_ARGUMENT && code <= WEFT_INTERNAL;
}

}  // namespace

weft_code fail(const Error& error) {
  last_message = error.message();
  return static_cast<weft_code>(static_cast<int>(error.code()) + kOffset);
}

void clear_callback_message() {
  callback_message.clear();
}

Error callback_error(weft_code code) {
  const bool is_known = is_error(code);
  std::string words = callback_message.empty() ? "a callback failed" : callback_message;
  if (!is_known) words += ": it returned " + std::to_string(code) + ", which is no weft_code";
  return {is_known ? static_cast<ErrorCode>(code - kOffset) : ErrorCode::kInternal, words};
}

Result<void> check_given(const void* pointer, const char* what) {
  if (pointer != nullptr) return {};
  return Error(ErrorCode::kInvalidArgument, std::string(what) + " is NULL");
}

}  // namespace weft::capi

extern "C" {

uint32_t weft_abi_version(void) {
  return WEFT_ABI_VERSION;
}

const char* weft_version(void) {
  return WEFT_VERSION;
}

const char* weft_code_name(weft_code code) {
  if (code == WEFT_OK) return "ok";
  if (!weft::capi::is_error(code)) return nullptr;
  return weft::error_traits(static_cast<weft::ErrorCode>(code - weft::capi::kOffset)).name;
}

const char* weft_error_message(void) {
  return weft::capi::last_message.c_str();
}

void weft_set_error_message(const char* message) {
  weft::capi::callback_message = weft::capi::text_or_empty(message);
}

void weft_set_log_level(weft_log_level level) {
  using weft::LogLevel;
  constexpr std::array kLevels = {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning,
                                  LogLevel::kError, LogLevel::kOff};
  if (level >= 0 && static_cast<std::size_t>(level) < kLevels.size())
    weft::set_log_level(kLevels.at(static_cast<std::size_t>(level)));
}

}  // extern "C"
