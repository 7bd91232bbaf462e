#include "weft/app/push.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>

#include <boost/json.hpp>
#include <fmt/core.h>
#include <unistd.h>

#include "weft/app/pushed.h"
#include "weft/base/log.h"
#include "weft/base/wording.h"
#include "weft/codec/block_codec.h"
#include "weft/digest/digest.h"
#include "weft/transfer/publisher.h"
#include "weft/transfer/tensor_source.h"

namespace weft {
namespace {

namespace json = boost::json;

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

std::uint64_t bytes_of(const PushReport& report, Encoding encoding) {
  return report.payload_bytes.at(static_cast<std::size_t>(encoding));
}

void print_line(const std::string& to, const Result<PushReport>& result) {
  if (!result) {
    fmt::print(stderr, "weft push: {}: {}\n", to, printable(result.error().message()));
    return;
  }
  constexpr double kMicrosecondsPerMs = 1000;
  const std::uint64_t delta_bytes = bytes_of(*result, Encoding::kDelta);
  fmt::print(
      "{}  {}  {} sent{}, {} there already, {:.2f} s, stall {:.1f} ms{}{}\n", to,
      printable(result->id), bytes_text(result->sent_bytes),
      delta_bytes > 0 ? fmt::format(" ({} of deltas)", bytes_text(delta_bytes)) : "",
      bytes_text(result->skipped_bytes), result->total_seconds,
      result->stall_us / kMicrosecondsPerMs,
      result->resumed > 0 ? ", resumed " + counted(result->resumed, "time") : "",
      result->fell_back > 0 ? ", deltas refused of " + counted(result->fell_back, "block") : "");
  std::fflush(stdout);
}

json::object result_object(const std::string& to, const Result<PushReport>& result) {
  if (!result) {
    return {{"to", to},
            {"error", result.error().message()},
            {"code", error_traits(result.error().code()).name}};
  }
  json::object payload;
  for (const Encoding encoding : encodings_taken(true))
    payload[encoding_name(encoding)] = bytes_of(*result, encoding);
  return {{"to", to},
          {"id", result->id},
          {"total_bytes", result->total_bytes},
          {"sent_bytes", result->sent_bytes},
          {"skipped_bytes", result->skipped_bytes},
          {"payload_bytes", std::move(payload)},
          {"base", result->base},
          {"fell_back", result->fell_back},
          {"resumed", result->resumed},
          {"hash_seconds", result->hash_seconds},
          {"send_seconds", result->send_seconds},
          {"commit_seconds", result->commit_seconds},
          {"total_seconds", result->total_seconds},
          {"stall_us", static_cast<std::int64_t>(result->stall_us)}};
}

// What is read once for all servers.
struct Sources {
  std::unique_ptr<TensorSource> source, base;
  VersionDigests digests;  // hashed here where several servers need them
  std::string stamp;       // of the files, before they were read
};

Result<Sources> blocking_open(const PushConfig& config) {
  Sources sources;
  sources.stamp = blocking_stamp(config.path);
  WEFT_TRY(sources.source, blocking_open_source(config.path));
  if (!config.base_path.empty()) {
    WEFT_TRY(sources.base, blocking_open_source(config.base_path));
  }
  if (config.to.size() > 1 && config.options.announce != Announce::kNever) {
    const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
    WEFT_TRY(sources.digests, blocking_hash_source(*sources.source, threads));
  }
  return sources;
}

Result<PushReport> blocking_push_to(
    const PushConfig& config, const std::string& to, const Sources& sources,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  WEFT_TRY(const auto client, make_client(to, config.client));
  PushOptions options = config.options;
  if (options.session.empty()) options.session = default_session(config.path);
  if (!sources.digests.empty()) options.digests = &sources.digests;
  options.base_source = sources.base.get();
  options.progress = progress;
  const bool finds_base = config.delta && options.base.empty();
  const auto last = finds_base ? PushedVersions::of_user().blocking_find(to) : std::nullopt;
  std::unique_ptr<TensorSource> last_source;
  if (last) {
    auto opened = blocking_open_source(last->path);
    if (opened) last_source = std::move(*opened);
  }
  if (last_source) {
    options.base = last->id;
    options.base_source = last_source.get();
  }
  return blocking_push(*client, *sources.source, options);
}

void blocking_remember(const PushConfig& config, const std::string& stamp,
                       std::span<const std::optional<Result<PushReport>>> results) {
  std::error_code failed;
  const std::string path = std::filesystem::canonical(config.path, failed).string();
  if (!config.delta || failed || stamp.empty()) return;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result<PushReport>& result = *results[i];
    if (!result || result->id.empty() || result->converted) continue;
    const auto remembered =
        PushedVersions::of_user().blocking_remember({config.to[i], result->id, path, stamp});
    if (!remembered) log_warning("push: {}", remembered.error().message());
  }
}

}  // namespace

int blocking_run_push(const PushConfig& config) {
  const auto sources = blocking_open(config);
  if (!sources) return report_error("push", sources.error(), config.client);
  ProgressLine line(config.client, config.to.size());
  std::mutex printing;
  std::vector<std::optional<Result<PushReport>>> results(config.to.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < config.to.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] =
          blocking_push_to(config, config.to[i], *sources,
                           [&line, i](std::uint64_t done_bytes, std::uint64_t total_bytes) {
                             line.set(i, done_bytes, total_bytes);
                           });
      const std::lock_guard lock(printing);
      line.clear();
      if (!config.client.json) print_line(config.to[i], *results[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  blocking_remember(config, sources->stamp, results);
  int status = 0;
  json::array array;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result<PushReport>& result = *results[i];
    array.push_back(result_object(config.to[i], result));
    if (!result && status == 0) status = error_traits(result.error().code()).exit_status;
  }
  if (config.client.json) {
    fmt::print("{}\n", json::serialize(json::object{{"results", std::move(array)}}));
  }
  return status;
}

}  // namespace weft
