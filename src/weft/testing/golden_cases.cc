#include "weft/testing/golden_cases.h"

#include <algorithm>
#include <cmath>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/testing/temporary_dir.h"

namespace weft {

struct GoldenCase::Json {
  boost::json::object object;
};

GoldenCase::GoldenCase(std::string_view name) {
  const auto text = blocking_read_file(source_dir() / "tests/golden/losses.json").value();
  json_ = std::make_unique<Json>(Json{boost::json::parse(text).at(name).as_object()});
}

GoldenCase::~GoldenCase() = default;

std::vector<double> GoldenCase::list(std::string_view key) const {
  std::vector<double> values;
  for (const auto& value : json_->object.at(key).as_array()) {
    values.push_back(value.to_number<double>());
  }
  return values;
}

std::vector<std::size_t> GoldenCase::sizes(std::string_view key) const {
  std::vector<std::size_t> values;
  for (const double value : list(key)) values.push_back(static_cast<std::size_t>(value));
  return values;
}

double GoldenCase::number(std::string_view key) const {
  const boost::json::value& value = json_->object.at(key);
  return value.is_array() ? list(key).at(0) : value.to_number<double>();
}

bool GoldenCase::flag(std::string_view key) const {
  return json_->object.at(key).as_bool();
}

void expect_near(std::span<const double> found, std::span<const double> expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-5 * std::max(std::abs(expected[i]), 1e-3)) << i;
  }
}

void expect_near(double found, double expected) {
  expect_near(std::span(&found, 1), std::span(&expected, 1));
}

void expect_gradient(const std::function<double(std::span<const double>)>& value,
                     std::span<const double> at, std::span<const double> gradient) {
  ASSERT_EQ(at.size(), gradient.size());
  std::vector<double> point(at.begin(), at.end());
  constexpr double kStep = 1e-6;
  for (std::size_t i = 0; i < point.size(); ++i) {
    point[i] = at[i] + kStep;
    const double above = value(point);
    point[i] = at[i] - kStep;
    const double below = value(point);
    point[i] = at[i];
    const double slope = (above - below) / (2 * kStep);
    EXPECT_NEAR(gradient[i], slope, 1e-7 * (1 + std::abs(gradient[i]))) << i;
  }
}

}  // namespace weft
