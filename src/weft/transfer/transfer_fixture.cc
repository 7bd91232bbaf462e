#include "weft/transfer/transfer_fixture.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include <arpa/inet.h>
#include <boost/json.hpp>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "weft/base/check.h"
#include "weft/codec/elem_kind.h"
#include "weft/format/safetensors.h"
#include "weft/protocol/block_frame.h"
#include "weft/protocol/block_ledger.h"

namespace weft::transfer_test {
namespace {

std::string_view text_of(const Bytes& bytes) {
  return {static_cast<const char*>(static_cast<const void*>(bytes.data())), bytes.size()};
}

std::span<const std::byte> block_of(const Tensors& tensors, std::size_t tensor,
                                    std::uint64_t block) {
  const std::span<const std::byte> data = tensors.data.at(tensor);
  return data.subspan(static_cast<std::size_t>(block * kBlockBytes),
                      static_cast<std::size_t>(block_length(data.size(), block)));
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

sockaddr* plain(sockaddr_in& address) {
  void* const pointer = &address;
  return static_cast<sockaddr*>(pointer);
}

int connect_to(std::uint16_t port) {
  sockaddr_in address = loopback(port);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  WEFT_CHECK(::connect(fd, plain(address), sizeof address) == 0);
  return fd;
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

}  // namespace

std::vector<TensorView> Tensors::views() const {
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < specs.size(); ++i) views.push_back({specs[i], data[i]});
  return views;
}

NamedBytes Tensors::bytes() const {
  NamedBytes bytes;
  for (std::size_t i = 0; i < specs.size(); ++i) bytes.emplace(specs[i].name, data[i]);
  return bytes;
}

std::string Tensors::file() const {
  std::string file = make_safetensors_header(specs, {}).value();
  for (const Bytes& bytes : data) file += text_of(bytes);
  return file;
}

std::size_t Tensors::find(std::string_view name) const {
  const auto at =
      std::ranges::find(specs, name, [](const auto& spec) { return std::string_view(spec.name); });
  WEFT_CHECK(at != specs.end());
  return static_cast<std::size_t>(at - specs.begin());
}

Tensors filled_tensors(const std::vector<TensorSpec>& specs, std::byte fill) {
  Tensors tensors{specs, {}};
  for (const TensorSpec& spec : specs) {
    tensors.data.emplace_back(static_cast<std::size_t>(tensor_size_bytes(spec).value()), fill);
  }
  return tensors;
}

Tensors random_tensors(const std::vector<TensorSpec>& specs, unsigned seed) {
  Tensors tensors = filled_tensors(specs, std::byte{0});
  for (std::size_t i = 0; i < specs.size(); ++i) {
    // By name, not by place: the order of the tensors must not matter.
    std::seed_seq sequence(specs[i].name.begin(), specs[i].name.end());
    std::mt19937_64 random(sequence);
    random.discard(seed);
    for (std::size_t at = 0; at < tensors.data[i].size(); at += sizeof(std::uint64_t)) {
      // No byte has all its exponent bits set, so no float here is infinite or no number.
      const std::uint64_t word = random() & 0x3f3f3f3f3f3f3f3f;
      const std::size_t size = std::min(sizeof word, tensors.data[i].size() - at);
      std::memcpy(tensors.data[i].data() + at, &word, size);
    }
  }
  return tensors;
}

std::vector<TensorSpec> small_model() {
  return {{"lm_head.weight", DType::kBF16, {32, 16}},
          {"model.embed_tokens.weight", DType::kBF16, {32, 16}},
          {"model.empty", DType::kBF16, {0, 16}},
          {"model.k_proj.weight", DType::kBF16, {8, 16}},
          {"model.norm.weight", DType::kF32, {16}},
          {"model.v_proj.weight", DType::kBF16, {8, 16}}};
}

std::vector<TensorSpec> large_model() {
  auto model = small_model();
  model.push_back({"model.large.weight", DType::kBF16, {2, kBlockBytes / 2 + 3}});
  return model;
}

FakeTarget::FakeTarget(std::shared_ptr<const WeightSet> weights, VersionName version)
    : weights_(std::move(weights)), version_(std::move(version)) {}

void FakeTarget::commit(std::shared_ptr<const WeightSet> weights, Takeover takeover, Done done) {
  hold_or_run([this, weights = std::move(weights), takeover = std::move(takeover),
               done = std::move(done)] { take(weights, takeover, done); });
}

void FakeTarget::commit_in_place(std::function<Result<void>()> patch, Takeover takeover,
                                 Done done) {
  hold_or_run(
      [this, patch = std::move(patch), takeover = std::move(takeover), done = std::move(done)] {
        const auto patched = [&] {
          const std::lock_guard lock(mutex_);
          return patch();
        }();
        if (!patched) return done(patched.error());
        take(nullptr, takeover, done);
      });
}

void FakeTarget::hold_or_run(std::function<void()> commit) {
  {
    const std::lock_guard lock(mutex_);
    if (holding_) return held_.push_back(std::move(commit));
  }
  commit();
}

void FakeTarget::take(std::shared_ptr<const WeightSet> weights, const Takeover& takeover,
                      const Done& done) {
  {
    const std::lock_guard lock(mutex_);
    if (weights) weights_ = std::move(weights);
    version_ = takeover.version;
    if (takeover.files) files_ = *takeover.files;
    on_update_ = takeover.on_update;
    was_rollback_ = takeover.is_rollback;
    if (on_update_ == OnUpdate::kFinish) running_.push_back(takeover.released);
    ++commits_;
  }
  constexpr std::uint64_t kStallUs = 5;
  if (takeover.on_update != OnUpdate::kFinish) takeover.released();
  done(Committed{kStallUs});
}

Result<void> FakeTarget::check_files(const ModelFiles& files) {
  const auto config = files.find("config.json");
  if (config == files.end() || config->second != "bad") return {};
  return Error(ErrorCode::kConflict, "config.json: hidden_size is another");
}

void FakeTarget::end_sequences() {
  std::vector<std::function<void()>> running;
  {
    const std::lock_guard lock(mutex_);
    running.swap(running_);
  }
  for (const auto& end : running) end();
}

ModelFiles FakeTarget::files() const {
  const std::lock_guard lock(mutex_);
  return files_;
}

OnUpdate FakeTarget::last_on_update() const {
  const std::lock_guard lock(mutex_);
  return on_update_;
}

bool FakeTarget::last_was_rollback() const {
  const std::lock_guard lock(mutex_);
  return was_rollback_;
}

void FakeTarget::rename(VersionName version) {
  const std::lock_guard lock(mutex_);
  version_ = std::move(version);
}

VersionName FakeTarget::current() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

void FakeTarget::run_step(const std::function<void(const WeightSet&, const VersionName&)>& step) {
  const std::lock_guard lock(mutex_);
  step(*weights_, version_);
}

void FakeTarget::hold_commits() {
  const std::lock_guard lock(mutex_);
  holding_ = true;
}

void FakeTarget::release_commits() {
  std::vector<std::function<void()>> held;
  {
    const std::lock_guard lock(mutex_);
    holding_ = false;
    held.swap(held_);
  }
  for (const auto& commit : held) commit();
}

unsigned FakeTarget::commits() const {
  const std::lock_guard lock(mutex_);
  return commits_;
}

Bench::Bench(const std::vector<TensorSpec>& model, ReceiverOptions options) : model_(model) {
  auto layout = std::make_shared<const WeightLayout>(WeightLayout::make(model).value());
  auto set = WeightSet::blocking_allocate(layout).value();
  const auto first = random_tensors(layout->tensors(), 1);
  for (std::size_t i = 0; i < first.data.size(); ++i)
    std::ranges::copy(first.data[i], set->tensor(i).begin());
  target_ = std::make_unique<FakeTarget>(set, VersionName{"", "default", false});
  receiver_ = Receiver::blocking_create(set, *target_, options).value();
  http::ServerOptions server_options;
  server_options.port = 0;
  server_ = http::Server::create(server_options, receiver_->routes()).value();
  client_ = client_of(server_->port());
}

Bench::~Bench() {
  server_->blocking_stop(std::chrono::seconds(5));
}

NamedBytes Bench::served() {
  NamedBytes bytes;
  target_->run_step([&](const WeightSet& set, const VersionName&) {
    for (std::size_t i = 0; i < set.layout().tensors().size(); ++i) {
      const auto tensor = set.tensor(i);
      bytes.emplace(set.layout().tensors()[i].name, Bytes(tensor.begin(), tensor.end()));
    }
  });
  return bytes;
}

http::Response Bench::call(const std::string& method, const std::string& target, std::string body,
                           const std::string& session) {
  http::Request request;
  request.method = method;
  request.target = target;
  request.body = std::move(body);
  if (!session.empty()) request.headers.add(std::string(kSessionHeader), session);
  return client_->blocking_send(request).value();
}

std::string Bench::state() {
  return member(call("GET", "/weft/v1/status").body, "state");
}

std::unique_ptr<http::Client> client_of(std::uint16_t port) {
  return http::Client::make(http::Url::parse(fmt::format("http://127.0.0.1:{}", port)).value());
}

std::string wire_request(std::string_view method, std::string_view target, std::string_view body,
                         std::string_view session, std::size_t chunk_bytes) {
  std::string request = fmt::format("{} {} HTTP/1.1\r\nHost: test\r\n", method, target);
  if (!session.empty()) request += fmt::format("{}: {}\r\n", kSessionHeader, session);
  if (chunk_bytes == 0)
    return request + fmt::format("Content-Length: {}\r\n\r\n", body.size()).append(body);
  request += "Transfer-Encoding: chunked\r\n\r\n";
  for (std::size_t at = 0; at < body.size(); at += chunk_bytes) {
    const auto chunk = body.substr(at, chunk_bytes);
    request.append(fmt::format("{:x}\r\n", chunk.size())).append(chunk).append("\r\n");
  }
  return request + "0\r\n\r\n";
}

RawConnection::RawConnection(std::uint16_t port) : fd_(connect_to(port)) {}

RawConnection::~RawConnection() {
  ::close(fd_);
}

bool RawConnection::send(std::string_view bytes) {
  return send_all(fd_, bytes);
}

void RawConnection::cut() {
  ::shutdown(fd_, SHUT_WR);
  for (char c = 0; ::recv(fd_, &c, 1, 0) > 0;) {
  }
}

int RawConnection::read_status() {
  std::string line;
  for (char c = 0; line.size() < 12;) {
    if (::recv(fd_, &c, 1, 0) != 1) return 0;
    line += c;
  }
  return std::stoi(line.substr(9, 3));
}

CuttingRelay::CuttingRelay(std::uint16_t server_port, std::vector<std::size_t> limits_bytes,
                           Fault fault)
    : server_port_(server_port),
      limits_bytes_(std::move(limits_bytes)),
      fault_(fault),
      listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  WEFT_CHECK(::bind(listener_, plain(address), size) == 0 && ::listen(listener_, 16) == 0);
  WEFT_CHECK(::getsockname(listener_, plain(address), &size) == 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_all(); });
}

CuttingRelay::~CuttingRelay() {
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (std::thread& relay : relays_) relay.join();
  ::close(listener_);
}

void CuttingRelay::accept_all() {
  for (std::size_t i = 0;; ++i) {
    const int client = ::accept(listener_, nullptr, nullptr);
    if (client < 0) return;
    const std::size_t limit = i < limits_bytes_.size() ? limits_bytes_[i] : SIZE_MAX;
    relays_.emplace_back([this, client, limit] { relay(client, limit); });
  }
}

void CuttingRelay::relay(int client, std::size_t limit_bytes) {
  const int server = connect_to(server_port_);
  std::array<pollfd, 2> ends{{{client, POLLIN, 0}, {server, POLLIN, 0}}};
  const std::size_t faulty = fault_ == Fault::kCutAnswers ? 1 : 0;
  const bool flips = fault_ == Fault::kFlipRequests;
  std::vector<char> buffer(64 << 10);
  for (bool open = true; open && ::poll(ends.data(), ends.size(), -1) > 0;) {
    for (std::size_t i = 0; i < ends.size() && open; ++i) {
      if (ends[i].revents == 0) continue;
      const bool is_faulty = i == faulty;
      const std::size_t most =
          is_faulty && !flips ? std::min(buffer.size(), limit_bytes) : buffer.size();
      const auto received = ::recv(ends[i].fd, buffer.data(), most, 0);
      if (received <= 0) {
        open = false;
        break;
      }
      const auto size = static_cast<std::size_t>(received);
      if (is_faulty && flips && limit_bytes < size) buffer[limit_bytes] ^= 1;
      if (is_faulty) limit_bytes = limit_bytes < size ? SIZE_MAX : limit_bytes - size;
      open = send_all(ends[1 - i].fd, {buffer.data(), size});
    }
  }
  ::close(server);
  ::close(client);
}

Result<void> blocking_result(const std::function<void(Receiver::Done)>& call) {
  std::promise<Result<void>> promise;
  call([&](Result<void> result) { promise.set_value(std::move(result)); });
  return promise.get_future().get();
}

std::string frame(std::size_t entry, std::uint64_t block, Encoding encoding,
                  std::span<const std::byte> payload, const Digest& digest) {
  const BlockFrame head{static_cast<std::uint32_t>(entry), static_cast<std::uint32_t>(block),
                        static_cast<std::uint32_t>(payload.size()),
                        static_cast<std::uint32_t>(encoding), digest};
  const auto bytes = encode_block_frame(head);
  return std::string(text_of(Bytes(bytes.begin(), bytes.end())))
      .append(text_of(Bytes(payload.begin(), payload.end())));
}

std::string block_body(const Tensors& tensors,
                       const std::vector<std::pair<std::size_t, std::uint64_t>>& blocks) {
  std::string body;
  for (const auto& [tensor, block] : blocks) {
    const auto bytes = block_of(tensors, tensor, block);
    body += frame(tensor, block, Encoding::kIdentity, bytes,
                  block_digest(tensors.data[tensor].size(), block, bytes));
  }
  return body;
}

std::string sparse_frame(const Tensors& base, const Tensors& next, std::size_t tensor,
                         std::uint64_t block) {
  const auto bytes = block_of(next, tensor, block);
  const auto payload = encode_sparse(block_of(base, tensor, block), bytes,
                                     dtype_size_bytes(next.specs[tensor].dtype));
  return frame(tensor, block, Encoding::kSparse, payload,
               block_digest(next.data[tensor].size(), block, bytes));
}

Bytes delta_payload(const Tensors& base, const Tensors& next, std::size_t tensor,
                    std::uint64_t block) {
  return encode_delta(block_of(base, tensor, block), block_of(next, tensor, block),
                      elem_kind_of(next.specs[tensor].dtype));
}

std::string delta_frame(const Tensors& base, const Tensors& next, std::size_t tensor,
                        std::uint64_t block) {
  return frame(tensor, block, Encoding::kDelta, delta_payload(base, next, tensor, block),
               block_digest(next.data[tensor].size(), block, block_of(next, tensor, block)));
}

std::string changes_body(const Tensors& base, const Tensors& next,
                         decltype(sparse_frame)& frame_of) {
  std::string body;
  for (std::size_t i = 0; i < next.data.size(); ++i) {
    for (std::uint64_t block = 0; block < block_count(next.data[i].size()); ++block)
      body += frame_of(base, next, i, block);
  }
  return body;
}

Tensors changed(Tensors tensors, std::size_t every) {
  for (Bytes& data : tensors.data) {
    for (std::size_t i = 0; i < data.size(); i += every) data[i] ^= std::byte{1};
  }
  return tensors;
}

std::string with(std::string object, const std::string& members) {
  return object.insert(1, members + ",");
}

std::string base_member(const Bench& bench) {
  return fmt::format(R"("base":"{}")", bench.current().id);
}

std::string open_upload(Bench& bench, const std::string& offer) {
  const auto answer = bench.call("POST", "/weft/v1/uploads", offer);
  WEFT_CHECK(answer.status == 201);
  return "/weft/v1/uploads/" + member(answer.body, "upload");
}

http::Response seal_and_commit(Bench& bench, const std::string& upload, const std::string& body) {
  const auto sealed = bench.call("POST", upload + "/seal");
  WEFT_CHECK(sealed.status == 200);
  return bench.call("POST", upload + "/commit", body);
}

std::string skeleton(const Tensors& tensors, bool with_digests) {
  std::string list;
  for (std::size_t i = 0; i < tensors.specs.size(); ++i) {
    const TensorSpec& spec = tensors.specs[i];
    std::vector<std::string> digests;
    const std::uint64_t size = tensors.data[i].size();
    for (std::uint64_t block = 0; with_digests && block < block_count(size); ++block) {
      digests.push_back('"' + digest_text(block_digest(size, block, block_of(tensors, i, block))) +
                        '"');
    }
    list += fmt::format(R"({}{{"name":"{}","dtype":"{}","shape":{},"blocks":[{}]}})",
                        i == 0 ? "" : ",", spec.name, dtype_name(spec.dtype),
                        shape_text(spec.shape), fmt::join(digests, ","));
  }
  return fmt::format(R"({{"tensors":[{}]}})", list);
}

std::string member(const std::string& json, const std::string& name) {
  boost::system::error_code failed;
  const auto value = boost::json::parse(json, failed);
  if (failed || !value.is_object()) return "";
  const auto* const found = value.get_object().if_contains(name);
  return found != nullptr && found->is_string() ? std::string(found->get_string()) : "";
}

}  // namespace weft::transfer_test
