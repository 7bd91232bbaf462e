#pragma once
// Cases of recorded numbers, and how closely what we compute must come to them.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// One case of tests/golden/losses.json (made by tests/golden/make_losses.py with TRL and torch).
// Immutable. What is not there throws.
class GoldenCase {
 public:
  explicit GoldenCase(std::string_view name);
  ~GoldenCase();

  std::vector<double> list(std::string_view key) const;
  std::vector<std::size_t> sizes(std::string_view key) const;
  double number(std::string_view key) const;  // a number, or a list of one
  bool flag(std::string_view key) const;

 private:
  struct Json;
  std::unique_ptr<Json> json_;
};

// Each within 1e-5 of the expected one, relative to it, or to 1e-3 where that is larger.
void expect_near(std::span<const double> found, std::span<const double> expected);
void expect_near(double found, double expected);

// Whether `gradient` is that of `value` at `at`, by central differences in double.
void expect_gradient(const std::function<double(std::span<const double>)>& value,
                     std::span<const double> at, std::span<const double> gradient);

}  // namespace weft
