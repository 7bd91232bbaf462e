#pragma once
// Result<T>: a value or an Error. The names are those of std::expected, so that it can become an
// alias of it later (GCC 12 has none).

#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "weft/base/check.h"
#include "weft/base/error.h"

namespace weft {

template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  template <typename U = T>
  requires(std::is_constructible_v<T, U&&> && !std::is_same_v<std::remove_cvref_t<U>, Result> &&
           !std::is_same_v<std::remove_cvref_t<U>, Error>) Result(U&& value)
      : state_(std::in_place_index<0>, std::forward<U>(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  // Requires: has_value().
  T& value() & { return checked(), *std::get_if<0>(&state_); }
  const T& value() const& { return checked(), *std::get_if<0>(&state_); }
  T&& value() && { return checked(), std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Requires: !has_value().
  const Error& error() const& { return failed(), *std::get_if<1>(&state_); }
  Error&& error() && { return failed(), std::move(*std::get_if<1>(&state_)); }

 private:
  void checked() const {
    if (!has_value()) internal::check_failed("Result::value", std::get_if<1>(&state_)->message());
  }
  void failed() const { WEFT_CHECK(!has_value()); }

  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  // Requires: has_value().
  void value() const {
    if (error_) internal::check_failed("Result::value", error_->message());
  }
  // Requires: !has_value().
  const Error& error() const& { return failed(), *error_; }
  Error&& error() && { return failed(), std::move(*error_); }

 private:
  void failed() const { WEFT_CHECK(error_.has_value()); }

  std::optional<Error> error_;
};

namespace internal {
template <typename T>
T&& move_value(Result<T>& result) {
  return std::move(result).value();
}
inline void move_value(Result<void>&) {}
}  // namespace internal

}  // namespace weft

#define WEFT_CONCAT_(a, b) a##b
#define WEFT_CONCAT(a, b) WEFT_CONCAT_(a, b)

// `WEFT_TRY(auto x, f());` declares x from f()'s value or returns f()'s error. Must not contain
// co_await (GCC 12 miscompiles it): name the result first.
#define WEFT_TRY(declaration, expression) \
  WEFT_TRY_(WEFT_CONCAT(weft_result_, __LINE__), declaration, expression)
#define WEFT_TRY_(result, declaration, expression)           \
  auto result = (expression);                                \
  if (!result.has_value()) return std::move(result).error(); \
  declaration = ::weft::internal::move_value(result)

// `WEFT_TRY_VOID(f());` for a Result<void>, or to drop a value.
#define WEFT_TRY_VOID(expression)                                      \
  do {                                                                 \
    if (auto weft_result_ = (expression); !weft_result_.has_value()) { \
      return std::move(weft_result_).error();                          \
    }                                                                  \
  } while (false)
