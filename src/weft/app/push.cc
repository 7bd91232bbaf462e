#include "weft/app/push.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>

#include <boost/json.hpp>
#include <fmt/core.h>
#include <unistd.h>

#include "weft/checkpoint/checkpoint_files.h"
#include "weft/digest/digest.h"
#include "weft/http/client.h"
#include "weft/transfer/publisher.h"

namespace weft {
namespace {

namespace json = boost::json;

struct Loaded {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<TensorView> tensors;
};

Result<Loaded> blocking_load(const std::string& path) {
  WEFT_TRY(const CheckpointFiles files, CheckpointFiles::blocking_open(path));
  Loaded loaded;
  for (const auto& entry : files.tensors()) {
    WEFT_TRY(const std::uint64_t size_bytes, tensor_size_bytes(entry.spec));
    auto& bytes = loaded.bytes.emplace_back(static_cast<std::size_t>(size_bytes));
    WEFT_TRY_VOID(files.blocking_read(entry, bytes));
    loaded.tensors.push_back({entry.spec, bytes});
  }
  return loaded;
}

// Who pushes, where nothing is said: this user of this host, with this path. So the same command
// again goes on where a cut one stopped, and everyone else is another owner.
std::string default_session(const std::string& path) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::error_code failed;
  const std::string place = std::filesystem::weakly_canonical(path, failed).string();
  const std::string who = fmt::format("{}/{}/{}", host.data(), ::getuid(), place);
  constexpr std::size_t kHexDigits = 16;
  const std::string digest = digest_text(digest_of(std::as_bytes(std::span(who))));
  return "push-" + digest.substr(digest.size() - kHexDigits);
}

void print_line(const std::string& to, const Result<PushReport>& result) {
  if (!result) {
    fmt::print(stderr, "weft push: {}: {}\n", to, result.error().message());
    return;
  }
  constexpr double kMegabyte = 1e6;
  fmt::print("{}  {}  {:.1f} MB sent, {:.1f} MB there already, {:.2f} s, stall {:.1f} ms{}\n", to,
             result->id, static_cast<double>(result->sent_bytes) / kMegabyte,
             static_cast<double>(result->skipped_bytes) / kMegabyte, result->total_seconds,
             result->stall_us / 1000,
             result->resumed > 0 ? fmt::format(", resumed {} times", result->resumed) : "");
}

// How far each server is, as one line that is written over.
class ProgressLine {
 public:
  ProgressLine(bool shown, std::size_t servers) : shown_(shown), shares_(servers) {}

  void set(std::size_t server, std::uint64_t done_bytes, std::uint64_t total_bytes) {
    const std::lock_guard lock(mutex_);
    shares_[server] =
        total_bytes == 0 ? 1 : static_cast<double>(done_bytes) / static_cast<double>(total_bytes);
    if (!shown_) return;
    std::string line = "\r";
    for (const double share : shares_) line += fmt::format("{:5.1f} %  ", 100 * share);
    fmt::print(stderr, "{}", line);
    std::fflush(stderr);
  }
  // Prints what became of a server in place of the line, as soon as it is known.
  void result(const std::string& to, const Result<PushReport>& result) {
    const std::lock_guard lock(mutex_);
    if (shown_) fmt::print(stderr, "\r\033[K");
    print_line(to, result);
    std::fflush(stdout);
  }

 private:
  const bool shown_;
  std::mutex mutex_;
  std::vector<double> shares_;
};

Result<PushReport> blocking_push_to(const std::string& to, const Loaded& loaded,
                                    PushOptions options) {
  WEFT_TRY(http::Url url, http::Url::parse(to));
  const auto client = http::Client::make(std::move(url));
  return blocking_push(*client, loaded.tensors, options);
}

json::object result_object(const std::string& to, const Result<PushReport>& result) {
  if (!result) {
    return {{"to", to},
            {"error", result.error().message()},
            {"code", error_traits(result.error().code()).name}};
  }
  return {{"to", to},
          {"id", result->id},
          {"total_bytes", result->total_bytes},
          {"sent_bytes", result->sent_bytes},
          {"skipped_bytes", result->skipped_bytes},
          {"resumed", result->resumed},
          {"hash_seconds", result->hash_seconds},
          {"send_seconds", result->send_seconds},
          {"commit_seconds", result->commit_seconds},
          {"total_seconds", result->total_seconds},
          {"stall_us", static_cast<std::int64_t>(result->stall_us)}};
}

}  // namespace

int blocking_run_push(const PushConfig& config) {
  const auto loaded = blocking_load(config.path);
  if (!loaded) {
    if (config.json) {
      fmt::print("{}\n",
                 json::serialize(json::object{{"error", loaded.error().message()},
                                              {"code", error_traits(loaded.error().code()).name}}));
    } else {
      fmt::print(stderr, "weft push: {}\n", loaded.error().message());
    }
    return error_traits(loaded.error().code()).exit_status;
  }
  const std::string session =
      config.session.empty() ? default_session(config.path) : config.session;
  ProgressLine line(config.progress && !config.json && ::isatty(STDERR_FILENO) != 0,
                    config.to.size());
  std::vector<std::optional<Result<PushReport>>> results(config.to.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < config.to.size(); ++i) {
    threads.emplace_back([&, i] {
      PushOptions options;
      options.label = config.label;
      options.session = session;
      options.connections = config.connections;
      options.progress = [&line, i](std::uint64_t done, std::uint64_t total) {
        line.set(i, done, total);
      };
      results[i] = blocking_push_to(config.to[i], *loaded, std::move(options));
      if (!config.json) line.result(config.to[i], *results[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  int status = 0;
  json::array array;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result<PushReport>& result = *results[i];
    array.push_back(result_object(config.to[i], result));
    if (!result && status == 0) status = error_traits(result.error().code()).exit_status;
  }
  if (config.json) fmt::print("{}\n", json::serialize(json::object{{"results", std::move(array)}}));
  return status;
}

}  // namespace weft
