#include "weft/transfer/publisher.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/log.h"
#include "weft/digest/digest.h"
#include "weft/format/json.h"
#include "weft/protocol/block_frame.h"
#include "weft/protocol/block_ledger.h"

namespace weft {
namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;

// One body carries no more than this, so that a cut costs little and progress is seen.
constexpr std::uint64_t kBatchBytes = 128ull << 20;
// Waits between tries: 0.1 s, doubled each time up to this.
constexpr std::chrono::milliseconds kFirstWait{100};
constexpr std::chrono::milliseconds kLongestWait{5'000};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Block {
  std::uint32_t tensor, block;
};

bool can_try_again(ErrorCode code) {
  return code == ErrorCode::kDisconnected || code == ErrorCode::kDeadline ||
         code == ErrorCode::kOverloaded;
}
// Sent blocks that were refused for these reasons can be sent again once the upload is open again.
bool can_resume(ErrorCode code) {
  return can_try_again(code) || code == ErrorCode::kCorrupt || code == ErrorCode::kConflict ||
         code == ErrorCode::kNotFound;
}

// The integer `name` of a server's answer. Errors: kCorrupt.
Result<std::uint64_t> number(const json::object& object, const char* name) {
  const json::value* const value = object.if_contains(name);
  const bool is_count =
      value != nullptr && (value->is_uint64() || (value->is_int64() && value->get_int64() >= 0));
  if (!is_count)
    return Error(ErrorCode::kCorrupt, fmt::format("the server's answer has no count `{}`", name));
  return value->to_number<std::uint64_t>();
}

Result<std::string> text(const json::object& object, const char* name) {
  const json::value* const value = object.if_contains(name);
  if (value == nullptr || !value->is_string()) {
    return Error(ErrorCode::kCorrupt, fmt::format("the server's answer has no text `{}`", name));
  }
  return std::string(value->get_string());
}

Result<json::object> object_of(Result<http::Response> response) {
  if (!response) return std::move(response).error();
  if (response->status >= 300) return http::error_of_response(*response);
  WEFT_TRY(json::value value, parse_json(response->body));
  if (!value.is_object())
    return Error(ErrorCode::kCorrupt, "the server's answer is no JSON object");
  return std::move(value.as_object());
}

// Calls work(i) for each i below `count`, on `threads` threads of its own; `tick` on the calling
// one, whenever some were done.
void blocking_for_each(unsigned threads, std::size_t count,
                       const std::function<void(std::size_t)>& work,
                       const std::function<void()>& tick) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::condition_variable changed;
  unsigned running = threads;
  bool news = false;
  const auto run = [&](unsigned index) {
    set_thread_name(fmt::format("weft-push-{}", index).c_str());
    for (std::size_t i = next++; i < count; i = next++) {
      work(i);
      const std::lock_guard lock(mutex);
      news = true;
      changed.notify_one();
    }
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_one();
  };
  std::vector<std::thread> pool;
  for (unsigned i = 0; i < threads; ++i) pool.emplace_back(run, i);
  std::unique_lock lock(mutex);
  while (running > 0) {
    changed.wait(lock, [&] { return news || running == 0; });
    news = false;
    lock.unlock();
    tick();
    lock.lock();
  }
  lock.unlock();
  for (std::thread& thread : pool) thread.join();
}

class Push {
 public:
  Push(http::Client& server, std::span<const TensorView> tensors, const PushOptions& options)
      : server_(server),
        tensors_(tensors),
        options_(options),
        session_(options.session.empty() ? fmt::format("push-{:08x}{:08x}", std::random_device()(),
                                                       std::random_device()())
                                         : options.session) {}

  Result<PushReport> blocking_run() {
    const auto start = Clock::now();
    for (const TensorView& tensor : tensors_) report_.total_bytes += tensor.data.size();
    blocking_hash();
    report_.hash_seconds = seconds_since(start);
    auto done = blocking_transfer();
    if (!done) {
      // So that the next push need not wait for the lease. Whatever comes of it, the first error
      // counts.
      if (!upload_.empty() && !can_try_again(done.error().code())) {
        static_cast<void>(server_.blocking_send(request("DELETE", "/weft/v1/uploads/" + upload_)));
      }
      return std::move(done).error();
    }
    report_.total_seconds = seconds_since(start);
    return report_;
  }

 private:
  struct Opened {
    std::vector<Block> missing;
    std::uint64_t verified_bytes = 0;
  };

  void blocking_hash() {
    std::vector<Block> blocks;
    digests_.resize(tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      digests_[i].resize(static_cast<std::size_t>(block_count(tensors_[i].data.size())));
      for (std::size_t block = 0; block < digests_[i].size(); ++block) {
        blocks.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(block)});
      }
    }
    const unsigned threads =
        std::clamp(std::thread::hardware_concurrency(), 1u, options_.connections);
    blocking_for_each(
        threads, blocks.size(),
        [&](std::size_t i) {
          const auto [tensor, block] = blocks[i];
          digests_[tensor][block] =
              block_digest(tensors_[tensor].data.size(), block, bytes_of(blocks[i]));
        },
        [] {});
  }

  Result<void> blocking_transfer() {
    const auto start = Clock::now();
    const std::string skeleton = skeleton_json();
    const std::optional<std::string> served_id = blocking_served_id();
    std::optional<std::uint64_t> verified_before;
    for (unsigned tries = 0;;) {
      auto sent = blocking_send_missing(skeleton);
      if (sent) break;
      // A try that brought something is not counted.
      if (verified_before && verified_bytes_ > *verified_before) tries = 0;
      verified_before = verified_bytes_;
      if (!can_resume(sent.error().code()) || is_final_ || ++tries > options_.retries) return sent;
      // Whoever lost their turn to another version must not undo it.
      if (const auto serving = blocking_served_id(); serving && serving != served_id) {
        return Error(ErrorCode::kConflict,
                     fmt::format("another version was committed meanwhile: {}", *serving));
      }
      ++report_.resumed;
      wait_before(tries);
    }
    report_.send_seconds = seconds_since(start);
    const auto sealed = Clock::now();
    WEFT_TRY(const json::object content, blocking_call("POST", "/seal", ""));
    WEFT_TRY(report_.id, text(content, "id"));
    if (!options_.commit) return {};
    const std::string body =
        options_.label.empty() ? "" : json::serialize(json::object{{"label", options_.label}});
    WEFT_TRY(const json::object committed, blocking_call("POST", "/commit", body));
    WEFT_TRY(const std::uint64_t stall_us, number(committed, "stall_us"));
    report_.stall_us = static_cast<double>(stall_us);
    report_.commit_seconds = seconds_since(sealed);
    return {};
  }

  // Nothing when the server does not say; the calls that follow have the reason.
  std::optional<std::string> blocking_served_id() {
    const auto status = object_of(server_.blocking_send(request("GET", "/weft/v1/status")));
    const json::value* const serving = status ? status->if_contains("serving") : nullptr;
    if (serving == nullptr || !serving->is_object()) return std::nullopt;
    const auto id = text(serving->get_object(), "id");
    return id ? std::optional(*id) : std::nullopt;
  }

  // One round: asks what is missing and sends it.
  Result<void> blocking_send_missing(const std::string& skeleton) {
    WEFT_TRY(const Opened opened, blocking_open(skeleton));
    verified_bytes_ = opened.verified_bytes;
    if (!first_open_done_) report_.skipped_bytes = opened.verified_bytes;
    first_open_done_ = true;
    show_progress();
    return blocking_send_blocks(opened.missing);
  }

  Result<Opened> blocking_open(const std::string& skeleton) {
    http::Request open = request("POST", "/weft/v1/uploads");
    open.body = skeleton;
    auto answer = object_of(server_.blocking_send(open));
    // What the server refuses here it would refuse again.
    is_final_ = !answer && !can_try_again(answer.error().code());
    if (!answer) return std::move(answer).error();
    WEFT_TRY(upload_, text(*answer, "upload"));
    Opened opened;
    WEFT_TRY(opened.verified_bytes, number(*answer, "verified_bytes"));
    const json::value* const missing = answer->if_contains("missing");
    if (missing == nullptr || !missing->is_array()) return bad_missing();
    for (const json::value& run : missing->get_array()) {
      if (!add_run(run, opened.missing)) return bad_missing();
    }
    return opened;
  }

  // Adds the blocks of one [tensor, first, count].
  bool add_run(const json::value& run, std::vector<Block>& blocks) const {
    if (!run.is_array() || run.get_array().size() != 3) return false;
    std::array<std::uint64_t, 3> numbers{};
    for (std::size_t i = 0; i < 3; ++i) {
      boost::system::error_code failed;
      numbers[i] = run.get_array()[i].to_number<std::uint64_t>(failed);
      if (failed) return false;
    }
    const auto [tensor, first, count] = numbers;
    if (tensor >= digests_.size() || count > digests_[tensor].size() ||
        first > digests_[tensor].size() - count) {
      return false;
    }
    for (std::uint64_t block = first; block < first + count; ++block) {
      blocks.push_back({static_cast<std::uint32_t>(tensor), static_cast<std::uint32_t>(block)});
    }
    return true;
  }

  static Error bad_missing() {
    return Error(ErrorCode::kCorrupt,
                 "the server's answer says `missing` in a way that fits no upload of ours");
  }

  Result<void> blocking_send_blocks(const std::vector<Block>& missing) {
    const auto batches = batches_of(missing);
    std::mutex mutex;
    std::optional<Error> failed;
    const auto send = [&](std::size_t i) {
      {
        const std::lock_guard lock(mutex);
        if (failed) return;
      }
      auto sent = blocking_send_batch(batches[i]);
      const std::lock_guard lock(mutex);
      report_.sent_bytes += sent.sent_bytes;
      verified_bytes_ += sent.verified_bytes;
      if (sent.error) failed = std::move(sent.error);
    };
    const auto threads = static_cast<unsigned>(
        std::min<std::size_t>(std::max(1u, options_.connections), batches.size()));
    blocking_for_each(threads, batches.size(), send, [&] {
      const std::lock_guard lock(mutex);
      show_progress();
    });
    return failed ? Result<void>(*failed) : Result<void>();
  }

  // Runs of `missing`, even enough that all connections end together.
  std::vector<std::span<const Block>> batches_of(const std::vector<Block>& missing) const {
    std::uint64_t total_bytes = 0;
    for (const Block& block : missing) total_bytes += bytes_of(block).size();
    const std::uint64_t share = total_bytes / (4ull * std::max(1u, options_.connections));
    const std::uint64_t limit_bytes = std::clamp(share, kBlockBytes, kBatchBytes);
    std::vector<std::span<const Block>> batches;
    std::size_t begin = 0;
    std::uint64_t batch_bytes = 0;
    for (std::size_t i = 0; i < missing.size(); ++i) {
      const std::uint64_t size = bytes_of(missing[i]).size();
      if (i > begin && batch_bytes + size > limit_bytes) {
        batches.emplace_back(std::span(missing).subspan(begin, i - begin));
        begin = i;
        batch_bytes = 0;
      }
      batch_bytes += size;
    }
    if (begin < missing.size()) batches.emplace_back(std::span(missing).subspan(begin));
    return batches;
  }

  struct Sent {
    std::uint64_t sent_bytes = 0;
    std::uint64_t verified_bytes = 0;
    std::optional<Error> error;
  };

  Sent blocking_send_batch(std::span<const Block> blocks) {
    std::vector<std::array<std::byte, kBlockFrameBytes>> frames(blocks.size());
    std::vector<std::span<const std::byte>> parts;
    std::uint64_t payload_bytes = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto bytes = bytes_of(blocks[i]);
      frames[i] = encode_block_frame({blocks[i].tensor, blocks[i].block,
                                      static_cast<std::uint32_t>(bytes.size()), 0,
                                      digests_[blocks[i].tensor][blocks[i].block]});
      parts.emplace_back(frames[i]);
      parts.push_back(bytes);
      payload_bytes += bytes.size();
    }
    Sent sent;
    const http::Request put = request("PUT", "/weft/v1/uploads/" + upload_ + "/blocks");
    auto answer = object_of(server_.blocking_send_from(
        put, parts, [&](std::uint64_t bytes) { sent.sent_bytes = bytes; }));
    if (!answer) {
      sent.error = std::move(answer).error();
      return sent;
    }
    sent.sent_bytes = payload_bytes + frames.size() * kBlockFrameBytes;
    sent.verified_bytes = payload_bytes;
    const auto busy = number(*answer, "busy");
    if (!busy) {
      sent.error = busy.error();
    } else if (*busy > 0) {
      sent.error =
          Error(ErrorCode::kOverloaded,
                fmt::format("{} blocks are still being written by a connection of before", *busy));
    }
    return sent;
  }

  // A call on the upload that may be repeated.
  Result<json::object> blocking_call(const std::string& method, const std::string& action,
                                     const std::string& body) {
    http::Request call = request(method, "/weft/v1/uploads/" + upload_ + action);
    call.body = body;
    for (unsigned tries = 1;; ++tries) {
      auto answer = object_of(server_.blocking_send(call));
      if (answer || !can_try_again(answer.error().code()) || tries > options_.retries)
        return answer;
      wait_before(tries);
    }
  }

  void wait_before(unsigned tries) const {
    const auto doubled = kFirstWait * (1 << std::min(tries - 1, 10u));
    std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(doubled, kLongestWait));
  }

  http::Request request(std::string method, std::string target) const {
    http::Request request;
    request.method = std::move(method);
    request.target = std::move(target);
    request.headers.add(std::string(kSessionHeader), session_);
    request.headers.add("Content-Type", request.target.ends_with("/blocks")
                                            ? "application/octet-stream"
                                            : "application/json");
    return request;
  }

  std::string skeleton_json() const {
    json::array tensors;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const TensorSpec& spec = tensors_[i].spec;
      const auto dtype = dtype_name(spec.dtype);
      json::array blocks;
      for (const Digest& digest : digests_[i]) blocks.push_back(json::string(digest_text(digest)));
      tensors.push_back(json::object{{"name", spec.name},
                                     {"dtype", json::string(dtype.data(), dtype.size())},
                                     {"shape", json::value_from(spec.shape)},
                                     {"blocks", std::move(blocks)}});
    }
    return json::serialize(json::object{{"tensors", std::move(tensors)}, {"replace", true}});
  }

  std::span<const std::byte> bytes_of(const Block& block) const {
    const auto data = tensors_[block.tensor].data;
    return data.subspan(static_cast<std::size_t>(block.block * kBlockBytes),
                        static_cast<std::size_t>(block_length(data.size(), block.block)));
  }

  void show_progress() const {
    if (options_.progress) options_.progress(verified_bytes_, report_.total_bytes);
  }

  http::Client& server_;
  const std::span<const TensorView> tensors_;
  const PushOptions& options_;
  const std::string session_;
  std::vector<std::vector<Digest>> digests_;  // [tensors][blocks]
  std::string upload_;                        // its id, once open
  std::uint64_t verified_bytes_ = 0;          // by the server
  bool first_open_done_ = false;
  bool is_final_ = false;  // the server refused the upload itself
  PushReport report_;
};

}  // namespace

Result<PushReport> blocking_push(http::Client& server, std::span<const TensorView> tensors,
                                 const PushOptions& options) {
  for (const TensorView& tensor : tensors) {
    WEFT_TRY(const std::uint64_t size_bytes, tensor_size_bytes(tensor.spec));
    if (size_bytes != tensor.data.size()) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("{}: {} bytes of data, {} of {} have {}", tensor.spec.name,
                               tensor.data.size(), shape_text(tensor.spec.shape),
                               dtype_name(tensor.spec.dtype), size_bytes));
    }
  }
  return Push(server, tensors, options).blocking_run();
}

}  // namespace weft
