#pragma once
// What the functions of include/weft/weft.h share: handles, errors, and how structs come in.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/client.h"
#include "weft/http/server.h"
#include "weft/tensor/tensor.h"
#include "weft/tensor/weight_set.h"
#include "weft/transfer/puller.h"
#include "weft/transfer/tensor_source.h"
#include "weft/transfer/version_blocks.h"
#include "weft/weft.h"

struct weft_client {
  std::unique_ptr<weft::http::Client> client;
};

namespace weft::capi {

using Files = std::map<std::string, std::string>;

// That hash and apply, where a caller does not say.
inline constexpr unsigned kThreads = 2;
// What a server of this process that closes gives to answers that have begun.
inline constexpr std::chrono::seconds kStopGrace{5};

// Held by all weights that read one set; `released` is called when the last of them is gone.
struct SetLease {
  explicit SetLease(std::shared_ptr<const WeightSet> weights) : set(std::move(weights)) {}
  ~SetLease() {
    if (released) released();
  }
  SetLease(const SetLease&) = delete;
  SetLease& operator=(const SetLease&) = delete;

  const std::shared_ptr<const WeightSet> set;
  std::function<void()> released;  // set while someone holds this who lets go afterwards
};

}  // namespace weft::capi

// Immutable, but for the count.
struct weft_weights {
  std::shared_ptr<weft::capi::SetLease> lease;
  std::shared_ptr<const weft::capi::Files> files;
  std::string id, label;
  std::shared_ptr<const weft::VersionContent> content{};  // null where nobody has hashed it yet
  mutable std::atomic<std::uint32_t> references{1};
};

namespace weft::capi {

struct ReleaseWeights {
  void operator()(const weft_weights* weights) const { weft_weights_release(weights); }
};
using WeightsRef = std::unique_ptr<const weft_weights, ReleaseWeights>;

// Keeps the words for weft_error_message() and returns the code.
weft_code fail(const Error& error);
// The error that a callback's code stands for, with the words that it left.
Error callback_error(weft_code code);
// Before a callback: words that an earlier one left are not its.
void clear_callback_message();

// What a server said, with its URL in front where it is about the server or what it has.
Error at_server(const http::Client& client, Error error);

// Runs the body of a function of the interface: `body` returns a Result<void>. Nothing is thrown
// past it.
template <typename Body>
weft_code guarded(Body body) {
  try {
    const Result<void> result = body();
    return result ? WEFT_OK : fail(result.error());
  } catch (const std::bad_alloc&) {
    return fail(Error(ErrorCode::kOverloaded, "no memory"));
  } catch (const std::exception& thrown) {
    return fail(Error(ErrorCode::kInternal, thrown.what()));
  }
}

// Errors: kInvalidArgument naming what must not be NULL.
Result<void> check_given(const void* pointer, const char* what);

// A struct that may come from an older or a newer caller: fields that it does not have are 0.
// Errors: kInvalidArgument when struct_size was not set.
template <typename T>
Result<T> read_struct(const T* given, const char* what) {
  T known{};
  known.struct_size = sizeof(T);
  if (given == nullptr) return known;
  if (given->struct_size < sizeof(std::size_t)) {
    return Error(ErrorCode::kInvalidArgument,
                 std::string(what) + ": struct_size is not set: begin with the _INIT of its type");
  }
  std::memcpy(&known, given, std::min(given->struct_size, sizeof(T)));
  return known;
}

// Fills a report as far as the caller knows it. Errors: as read_struct().
template <typename T>
Result<void> write_struct(T* given, T filled, const char* what) {
  if (given == nullptr) return {};
  WEFT_TRY(const T known, read_struct(given, what));
  filled.struct_size = std::min(known.struct_size, sizeof(T));
  std::memcpy(given, &filled, filled.struct_size);
  return {};
}

inline std::string text_or_empty(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}
// "0: the default, less: none."
inline unsigned retries_of(std::int32_t given, unsigned fallback) {
  return given == 0 ? fallback : static_cast<unsigned>(std::max(given, 0));
}
void copy_id(const std::string& id, char (&out)[WEFT_ID_SIZE]);
weft_pull_report report_of(const PullReport& report, std::size_t deltas);

// Errors: kInvalidArgument naming the tensor or file.
Result<TensorSpec> read_spec(const weft_tensor& tensor);
Result<std::vector<TensorSpec>> read_specs(const weft_tensor* tensors, std::size_t count);
Result<Files> read_files(const weft_file* files, std::size_t count);
// What `source` says, which must stay while this is used. Blocks. Errors: as
// blocking_open_source() and MemorySource::create(); kInvalidArgument.
Result<std::unique_ptr<TensorSource>> blocking_open(const weft_source& source);
// The same of options.base; null where none is given.
Result<std::unique_ptr<TensorSource>> blocking_open_base(const weft_source* base);

// The caller's, of a call's options; empty where none is given.
template <typename Options>
std::function<void(std::uint64_t, std::uint64_t)> progress_of(const Options& known) {
  if (known.progress == nullptr) return {};
  return [call = known.progress, context = known.context](std::uint64_t done_bytes,
                                                          std::uint64_t total_bytes) {
    call(context, done_bytes, total_bytes);
  };
}

weft_tensor tensor_of(const WeightSet& set, std::size_t index);

// Weights as the version that they are, and as a source in manifest order. Must not outlive them.
class HeldVersion final : public VersionBlocks, public TensorSource {
 public:
  // Hashes those that nobody has hashed yet. Blocks.
  static Result<std::unique_ptr<HeldVersion>> blocking_make(const weft_weights& weights);

  const VersionContent& content() const override { return *content_; }
  Result<std::span<const std::byte>> blocking_read(const BlockPlace& place,
                                                   std::span<std::byte> scratch) const override {
    return blocking_read(static_cast<std::size_t>(place.entry), place.block * kBlockBytes, scratch);
  }
  const std::vector<TensorSpec>& tensors() const override { return set_.layout().tensors(); }
  const std::vector<OfferedFile>& files() const override { return files_; }
  Result<std::span<const std::byte>> blocking_read(std::size_t entry, std::uint64_t offset_bytes,
                                                   std::span<std::byte> scratch) const override;

 private:
  explicit HeldVersion(const weft_weights& weights);

  const WeightSet& set_;
  std::vector<OfferedFile> files_;
  std::vector<std::span<const std::byte>> texts_;  // of the files
  std::shared_ptr<const VersionContent> content_;
};

// How a server of this process listens. Blocks. Errors: kInvalidArgument, of the certificate too.
Result<http::ServerOptions> blocking_listen_options(const weft_listen_options* given);
http::Route health_route();
std::string url_of(const http::ServerOptions& options, std::uint16_t port);

}  // namespace weft::capi
