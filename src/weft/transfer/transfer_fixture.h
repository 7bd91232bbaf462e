#pragma once
// What the tests of transfer stand on: a server with a receiver over a small model, a target that
// takes commits as an engine would, and a client that can stop in the middle of a request.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "weft/codec/block_codec.h"
#include "weft/digest/digest.h"
#include "weft/http/client.h"
#include "weft/http/server.h"
#include "weft/transfer/receiver.h"

namespace weft::transfer_test {

using Bytes = std::vector<std::byte>;
using NamedBytes = std::map<std::string, Bytes>;

// Tensors that own their bytes.
struct Tensors {
  std::vector<TensorSpec> specs;
  std::vector<Bytes> data;

  std::vector<TensorView> views() const;
  NamedBytes bytes() const;
  // A safetensors file of them in this order.
  std::string file() const;
  std::size_t find(std::string_view name) const;
};

// Bytes that depend on the seed alone. Floats are finite, so that they convert.
Tensors random_tensors(const std::vector<TensorSpec>& specs, unsigned seed);
// All bytes are `fill`.
Tensors filled_tensors(const std::vector<TensorSpec>& specs, std::byte fill);

// A few kilobytes: bf16, fp32, and an empty tensor.
std::vector<TensorSpec> small_model();
// The same with one tensor of three blocks.
std::vector<TensorSpec> large_model();

// Serves from one set; a commit waits until no step runs, as in an engine. Thread-safe.
class FakeTarget final : public WeightTarget {
 public:
  FakeTarget(std::shared_ptr<const WeightSet> weights, VersionName version);

  void commit(std::shared_ptr<const WeightSet> weights, Takeover takeover, Done done) override;
  void commit_in_place(std::function<Result<void>()> patch, Takeover takeover, Done done) override;
  void evict_retired() override { end_sequences(); }
  // Refuses a config.json that is "bad".
  Result<void> check_files(const ModelFiles& files) override;
  void rename(VersionName version) override;
  VersionName current() const override;

  // Calls `step` with what is served; no commit happens meanwhile.
  void run_step(const std::function<void(const WeightSet&, const VersionName&)>& step);
  // Commits are kept until release_commits().
  void hold_commits();
  void release_commits();
  unsigned commits() const;
  // After a takeover with kFinish sequences run on the old set, until this.
  void end_sequences();
  // Those of the last takeover that brought some.
  ModelFiles files() const;
  OnUpdate last_on_update() const;
  bool last_was_rollback() const;

 private:
  void hold_or_run(std::function<void()> commit);
  void take(std::shared_ptr<const WeightSet> weights, const Takeover& takeover, const Done& done);

  mutable std::mutex mutex_;
  std::shared_ptr<const WeightSet> weights_;
  VersionName version_;
  unsigned commits_ = 0;
  bool holding_ = false;
  std::vector<std::function<void()>> held_;
  std::vector<std::function<void()>> running_;  // what ends sequences
  ModelFiles files_;
  OnUpdate on_update_ = OnUpdate::kContinue;
  bool was_rollback_ = false;
};

// The whole of it, on a free port.
class Bench {
 public:
  explicit Bench(const std::vector<TensorSpec>& model = large_model(),
                 ReceiverOptions options = {});
  ~Bench();

  http::Client& client() { return *client_; }
  Receiver& receiver() { return *receiver_; }
  FakeTarget& target() { return *target_; }
  std::uint16_t port() const { return server_->port(); }
  const std::vector<TensorSpec>& model() const { return model_; }
  // What is served at first.
  Tensors first() const { return random_tensors(model_, 1); }

  NamedBytes served();
  VersionName current() const { return target_->current(); }
  // The answer to one request; aborts the test when none comes.
  http::Response call(const std::string& method, const std::string& target, std::string body = "",
                      const std::string& session = "");
  // "idle", "staging", ...
  std::string state();

 private:
  std::vector<TensorSpec> model_;
  std::unique_ptr<FakeTarget> target_;
  std::unique_ptr<Receiver> receiver_;
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<http::Client> client_;
};

// A client of 127.0.0.1:`port`.
std::unique_ptr<http::Client> client_of(std::uint16_t port);

// A request as it goes over the wire. `chunk_bytes`: of a chunked body, 0: with Content-Length.
std::string wire_request(std::string_view method, std::string_view target, std::string_view body,
                         std::string_view session = "", std::size_t chunk_bytes = 0);
// One connection. The destructor closes it.
class RawConnection {
 public:
  explicit RawConnection(std::uint16_t port);
  ~RawConnection();
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  // False when the peer has closed.
  bool send(std::string_view bytes);
  // Sends no more and waits until the server has closed the connection for that.
  void cut();
  // The status of the next answer; 0 when the connection ends first.
  int read_status();

 private:
  int fd_;
};

// A relay that cuts, or flips a bit of, what a client or its server sends: on each connection after
// the next of `limits_bytes`, on those after the last limit never.
class CuttingRelay {
 public:
  enum class Fault { kCutRequests, kCutAnswers, kFlipRequests };
  CuttingRelay(std::uint16_t server_port, std::vector<std::size_t> limits_bytes,
               Fault fault = Fault::kCutRequests);
  ~CuttingRelay();

  std::uint16_t port() const { return port_; }

 private:
  void accept_all();
  void relay(int client, std::size_t limit_bytes);

  const std::uint16_t server_port_;
  const std::vector<std::size_t> limits_bytes_;
  const Fault fault_;
  std::uint16_t port_ = 0;
  int listener_;
  std::vector<std::thread> relays_;
  std::thread acceptor_;
};

// What a call of the receiver's control methods answers.
Result<void> blocking_result(const std::function<void(Receiver::Done)>& call);

// Frames and bytes of blocks, as `PUT .../blocks` takes them.
std::string block_body(const Tensors& tensors,
                       const std::vector<std::pair<std::size_t, std::uint64_t>>& blocks);
// One frame.
std::string frame(std::size_t entry, std::uint64_t block, Encoding encoding,
                  std::span<const std::byte> payload, const Digest& digest);
// What turns block `block` of a tensor of `base` into that of `next`; a frame of it.
Bytes delta_payload(const Tensors& base, const Tensors& next, std::size_t tensor,
                    std::uint64_t block);
std::string sparse_frame(const Tensors& base, const Tensors& next, std::size_t tensor,
                         std::uint64_t block);
std::string delta_frame(const Tensors& base, const Tensors& next, std::size_t tensor,
                        std::uint64_t block);
// Each block of all tensors of `next`, as `frame_of` has it.
std::string changes_body(const Tensors& base, const Tensors& next,
                         decltype(sparse_frame)& frame_of);
// One bit of one byte in `every`.
Tensors changed(Tensors tensors, std::size_t every = 500);
// The skeleton of an upload, with the digests of the blocks or without.
std::string skeleton(const Tensors& tensors, bool with_digests = false);
// `object` with more members in front.
std::string with(std::string object, const std::string& members);
// "base": what `bench` serves.
std::string base_member(const Bench& bench);
// The path of the upload that is opened; aborts the test when it is refused.
std::string open_upload(Bench& bench, const std::string& offer);
// The answer to the commit; aborts the test when the seal is refused.
http::Response seal_and_commit(Bench& bench, const std::string& upload,
                               const std::string& body = "");
// The string member `name` of a JSON object; "" without.
std::string member(const std::string& json, const std::string& name);

}  // namespace weft::transfer_test
