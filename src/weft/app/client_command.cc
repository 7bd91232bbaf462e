#include "weft/app/client_command.h"

#include <array>
#include <cstdio>
#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>
#include <unistd.h>

#include "weft/base/wording.h"
#include "weft/transfer/peer_error.h"

namespace weft {

Result<std::unique_ptr<http::Client>> make_client(const std::string& url,
                                                  const ClientConfig& config) {
  WEFT_TRY(http::Url parsed, http::Url::parse(url));
  http::ClientOptions options;
  options.key = config.key;
  options.ca_file = config.ca_file;
  return http::Client::make(std::move(parsed), std::move(options));
}

Result<http::Response> blocking_call(http::Client& server, std::string method, std::string target,
                                     http::Headers headers, std::string body) {
  http::Request request;
  request.method = std::move(method);
  request.target = std::move(target);
  request.headers = std::move(headers);
  request.body = std::move(body);
  WEFT_TRY(http::Response response, server.blocking_send(request));
  constexpr int kFirstError = 400;
  if (response.status >= kFirstError) return peer_error(response);
  return response;
}

int report_error(std::string_view command, const Error& error, const ClientConfig& config) {
  const ErrorTraits& traits = error_traits(error.code());
  if (config.json) {
    fmt::print("{}\n", boost::json::serialize(
                           boost::json::object{{"error", error.message()}, {"code", traits.name}}));
  } else {
    fmt::print(stderr, "weft {}: {}\n", command, printable(error.message()));
  }
  return traits.exit_status;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"kB", "MB", "GB", "TB"};
  constexpr double kStep = 1000;
  if (static_cast<double>(bytes) < kStep) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / kStep;
  std::size_t unit = 0;
  for (; value >= kStep && unit + 1 < kUnits.size(); ++unit) value /= kStep;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

ProgressLine::ProgressLine(const ClientConfig& config, std::size_t transfers)
    : shown_(config.progress && !config.json && ::isatty(STDERR_FILENO) != 0), shares_(transfers) {}

void ProgressLine::set(std::size_t transfer, std::uint64_t done_bytes, std::uint64_t total_bytes) {
  const std::lock_guard lock(mutex_);
  shares_[transfer] =
      total_bytes == 0 ? 1 : static_cast<double>(done_bytes) / static_cast<double>(total_bytes);
  if (!shown_) return;
  std::string line = "\r";
  constexpr double kPercent = 100;
  for (const double share : shares_) line += fmt::format("{:5.1f} %  ", kPercent * share);
  fmt::print(stderr, "{}", line);
  std::fflush(stderr);
}

void ProgressLine::clear() {
  const std::lock_guard lock(mutex_);
  if (shown_) fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

}  // namespace weft
