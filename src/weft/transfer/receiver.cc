#include "weft/transfer/receiver.h"

#include <charconv>
#include <random>
#include <utility>

#include <fmt/core.h>

#include "weft/protocol/block_frame.h"
#include "weft/transfer/internal/core.h"
#include "weft/transfer/internal/messages.h"
#include "weft/transfer/internal/sinks.h"

namespace weft {
namespace {

using internal::CommitReport;
using internal::Core;

using ExchangePtr = std::shared_ptr<http::Exchange>;

// A skeleton with digests: about 70 bytes for each 8 MiB, 64 MiB for 7 TB of weights.
constexpr std::uint64_t kSkeletonLimitBytes = 64u << 20;

void respond(http::Exchange& exchange, const Error& error) {
  exchange.respond(http::error_response(error));
}

void respond(http::Exchange& exchange, const Result<CommitReport>& report) {
  if (!report) return respond(exchange, report.error());
  exchange.respond(http::json_response(internal::commit_json(*report)));
}

std::optional<std::uint64_t> content_length(const http::Request& request) {
  const auto text = request.headers.try_get("Content-Length");
  std::uint64_t length = 0;
  if (!text ||
      std::from_chars(text->data(), text->data() + text->size(), length).ec != std::errc()) {
    return std::nullopt;
  }
  return length;
}

class ReceiverImpl final : public Receiver {
 public:
  explicit ReceiverImpl(std::shared_ptr<Core> core)
      : routes_(std::make_shared<Routes>(std::move(core))) {}
  ~ReceiverImpl() override { core().blocking_shutdown(); }

  std::vector<http::Route> routes() override;

  void start_update(const std::string& owner, Done done) override { done(core().start(owner)); }
  void update(const std::string& owner, std::optional<std::string> path, Done done) override {
    core().update(owner, std::move(path), std::move(done));
  }
  void refuse_update(const std::string& owner, const Error& error) override {
    core().refuse(owner, error);
  }
  void finish_update(const std::string& owner, std::optional<std::string> label,
                     Done done) override {
    core().finish(owner, std::move(label),
                  [done = std::move(done)](const Result<CommitReport>& report) {
                    done(report ? Result<void>() : report.error());
                  });
  }
  Result<void> set_label(const std::string& label) override { return core().set_label(label); }
  void checksums(
      std::function<void(std::vector<std::pair<std::string, std::string>>)> done) override {
    core().checksums(std::move(done));
  }

 private:
  // The handlers; shared by them, so that a request under way outlives the receiver.
  struct Routes : std::enable_shared_from_this<Routes> {
    explicit Routes(std::shared_ptr<Core> core_) : core(std::move(core_)) {}

    // An upload's name: which process gave it, and the epoch.
    std::string upload_id(Epoch epoch) const { return fmt::format("{}-{}", instance, epoch); }
    Result<Epoch> epoch_of(const http::Request& request) const;
    // Calls `use(owner, epoch)` or answers with the error.
    template <typename Use>
    void with_upload(const http::Request& request, const ExchangePtr& exchange, Use&& use);

    std::shared_ptr<void> add_connection(const ExchangePtr& exchange);
    Result<std::unique_ptr<http::BodySink>> put_weights(const http::Request& request,
                                                        ExchangePtr exchange);
    Result<std::unique_ptr<http::BodySink>> put_blocks(const http::Request& request,
                                                       ExchangePtr exchange);
    void open_upload(const http::Request& request, ExchangePtr exchange);
    void respond_progress(const std::string& owner, Epoch epoch, http::Exchange& exchange);
    void get_upload(const http::Request& request, ExchangePtr exchange);
    void seal(const http::Request& request, ExchangePtr exchange);
    void commit(const http::Request& request, ExchangePtr exchange);
    void abort(const http::Request& request, ExchangePtr exchange);
    void get_status(const http::Request& request, ExchangePtr exchange);
    void get_current(const http::Request& request, ExchangePtr exchange);
    void get_manifest(const http::Request& request, ExchangePtr exchange);

    const std::shared_ptr<Core> core;
    const std::string instance = fmt::format("{:08x}", std::random_device()());
  };

  Core& core() { return *routes_->core; }

  std::shared_ptr<Routes> routes_;
};

std::vector<http::Route> ReceiverImpl::routes() {
  std::vector<http::Route> table;
  const auto plain = [&](const char* method, const char* pattern,
                         void (Routes::*handler)(const http::Request&, ExchangePtr),
                         std::uint64_t limit_bytes = 64u << 10) {
    auto call = [routes = routes_, handler](const http::Request& request, ExchangePtr exchange) {
      (*routes.*handler)(request, std::move(exchange));
    };
    table.push_back({method, pattern, std::move(call), nullptr, limit_bytes});
  };
  const auto bulk = [&](const char* method, const char* pattern,
                        Result<std::unique_ptr<http::BodySink>> (Routes::*handler)(
                            const http::Request&, ExchangePtr)) {
    auto call = [routes = routes_, handler](const http::Request& request, ExchangePtr exchange) {
      return (*routes.*handler)(request, std::move(exchange));
    };
    table.push_back({method, pattern, nullptr, std::move(call), 0});
  };
  bulk("PUT", "/weft/v1/weights", &Routes::put_weights);
  bulk("POST", "/weft/v1/weights", &Routes::put_weights);
  plain("POST", "/weft/v1/uploads", &Routes::open_upload, kSkeletonLimitBytes);
  plain("GET", "/weft/v1/uploads/{upload}", &Routes::get_upload);
  plain("DELETE", "/weft/v1/uploads/{upload}", &Routes::abort);
  bulk("PUT", "/weft/v1/uploads/{upload}/blocks", &Routes::put_blocks);
  plain("POST", "/weft/v1/uploads/{upload}/seal", &Routes::seal);
  plain("POST", "/weft/v1/uploads/{upload}/commit", &Routes::commit);
  plain("GET", "/weft/v1/status", &Routes::get_status);
  plain("GET", "/weft/v1/versions/current", &Routes::get_current);
  plain("GET", "/weft/v1/versions/{id}/manifest", &Routes::get_manifest);
  return table;
}

Result<Epoch> ReceiverImpl::Routes::epoch_of(const http::Request& request) const {
  const std::string_view name = request.param("upload");
  const std::string prefix = instance + "-";
  Epoch epoch = 0;
  if (name.starts_with(prefix)) {
    const char* const end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + prefix.size(), end, epoch);
    if (parsed.ec == std::errc() && parsed.ptr == end && epoch != 0) return epoch;
  }
  return Error(ErrorCode::kNotFound, fmt::format("no upload `{}` here: open one", name));
}

template <typename Use>
void ReceiverImpl::Routes::with_upload(const http::Request& request, const ExchangePtr& exchange,
                                       Use&& use) {
  const auto owner = internal::owner_of(request);
  if (!owner) return respond(*exchange, owner.error());
  const auto epoch = epoch_of(request);
  if (!epoch) return respond(*exchange, epoch.error());
  std::forward<Use>(use)(*owner, *epoch);
}

std::shared_ptr<void> ReceiverImpl::Routes::add_connection(const ExchangePtr& exchange) {
  return core->add_connection([weak = std::weak_ptr(exchange)] {
    if (const auto alive = weak.lock()) alive->close();
  });
}

Result<std::unique_ptr<http::BodySink>> ReceiverImpl::Routes::put_weights(
    const http::Request& request, ExchangePtr exchange) {
  WEFT_TRY(const std::string owner, internal::owner_of(request));
  WEFT_TRY(auto label, internal::label_of_query(request));
  const std::string_view commits = request.try_query("commit").value_or("true");
  if (commits != "true" && commits != "false") {
    return Error(ErrorCode::kInvalidArgument, "commit: expected true or false", "query.commit");
  }
  WEFT_TRY(const Epoch epoch, core->open_body(owner));
  auto staged = [self = shared_from_this(), owner, epoch, label = std::move(label),
                 commits = commits == "true", connection = add_connection(exchange),
                 exchange = std::move(exchange)](const Result<void>& result) {
    if (!result) return respond(*exchange, result.error());
    if (!commits) return self->respond_progress(owner, epoch, *exchange);
    self->core->commit_upload(owner, epoch, label, [exchange](const Result<CommitReport>& report) {
      respond(*exchange, report);
    });
  };
  return internal::make_file_sink(core, owner, epoch, content_length(request), std::move(staged));
}

Result<std::unique_ptr<http::BodySink>> ReceiverImpl::Routes::put_blocks(
    const http::Request& request, ExchangePtr exchange) {
  WEFT_TRY(const std::string owner, internal::owner_of(request));
  WEFT_TRY(const Epoch epoch, epoch_of(request));
  WEFT_TRY(auto upload, core->upload(owner, epoch));
  auto done = [connection = add_connection(exchange),
               exchange = std::move(exchange)](const Result<internal::BlockCounts>& counts) {
    if (!counts) return respond(*exchange, counts.error());
    exchange->respond(http::json_response(
        internal::blocks_json(counts->verified, counts->repeated, counts->busy)));
  };
  return internal::make_blocks_sink(core, std::move(upload), std::move(done));
}

void ReceiverImpl::Routes::open_upload(const http::Request& request, ExchangePtr exchange) {
  auto owner = internal::owner_of(request);
  if (!owner) return respond(*exchange, owner.error());
  // A skeleton with digests takes milliseconds to read, and blocks that are here are copied: not
  // for an I/O thread.
  core->post([self = shared_from_this(), owner = *owner, body = request.body,
              exchange = std::move(exchange)] {
    auto parsed = internal::parse_upload_request(body);
    if (!parsed) return respond(*exchange, parsed.error());
    const auto opened = self->core->blocking_open_upload(owner, std::move(*parsed));
    if (!opened) return respond(*exchange, opened.error());
    exchange->respond(
        http::json_response(internal::upload_json(self->upload_id(opened->epoch), *opened), 201));
  });
}

void ReceiverImpl::Routes::respond_progress(const std::string& owner, Epoch epoch,
                                            http::Exchange& exchange) {
  const auto progress = core->progress(owner, epoch);
  if (!progress) return respond(exchange, progress.error());
  exchange.respond(http::json_response(internal::upload_json(upload_id(epoch), *progress)));
}

void ReceiverImpl::Routes::get_upload(const http::Request& request, ExchangePtr exchange) {
  with_upload(request, exchange, [&](const std::string& owner, Epoch epoch) {
    respond_progress(owner, epoch, *exchange);
  });
}

void ReceiverImpl::Routes::seal(const http::Request& request, ExchangePtr exchange) {
  with_upload(request, exchange, [&](const std::string& owner, Epoch epoch) {
    core->seal(owner, epoch, [exchange](const auto& content) {
      if (!content) return respond(*exchange, content.error());
      exchange->respond(http::json_response(internal::content_json(**content)));
    });
  });
}

void ReceiverImpl::Routes::commit(const http::Request& request, ExchangePtr exchange) {
  with_upload(request, exchange, [&](const std::string& owner, Epoch epoch) {
    auto label = internal::parse_commit_request(request.body);
    if (!label) return respond(*exchange, label.error());
    core->commit_upload(
        owner, epoch, std::move(*label),
        [exchange](const Result<CommitReport>& report) { respond(*exchange, report); });
  });
}

void ReceiverImpl::Routes::abort(const http::Request& request, ExchangePtr exchange) {
  with_upload(request, exchange, [&](const std::string& owner, Epoch epoch) {
    const auto aborted = core->abort(owner, epoch);
    if (!aborted) return respond(*exchange, aborted.error());
    exchange->respond(http::json_response(R"({"state":"aborted"})"));
  });
}

void ReceiverImpl::Routes::get_status(const http::Request&, ExchangePtr exchange) {
  const internal::Status status = core->status();
  exchange->respond(
      http::json_response(internal::status_json(status, upload_id(status.epoch), core->current())));
}

void ReceiverImpl::Routes::get_current(const http::Request&, ExchangePtr exchange) {
  exchange->respond(http::json_response(internal::version_json(core->current())));
}

void ReceiverImpl::Routes::get_manifest(const http::Request& request, ExchangePtr exchange) {
  const auto served = core->served();
  const std::string_view id = request.param("id");
  if (id != served->id) {
    return respond(*exchange, Error(ErrorCode::kNotFound,
                                    fmt::format("no version `{}` here, only {}", id, served->id)));
  }
  http::Response response = http::json_response(served->manifest);
  response.headers.set("ETag", '"' + served->id + '"');
  response.headers.set("Cache-Control", "public, max-age=31536000, immutable, no-transform");
  exchange->respond(std::move(response));
}

}  // namespace

Result<std::unique_ptr<Receiver>> Receiver::blocking_create(std::shared_ptr<WeightSet> serving,
                                                            WeightTarget& target,
                                                            ReceiverOptions options) {
  auto layout = std::shared_ptr<const WeightLayout>(serving, &serving->layout());
  auto staging = WeightSet::blocking_allocate(layout);
  if (!staging) return std::move(staging).error().with_context("the second set of weights");
  VersionName version = target.current();
  const auto served = internal::blocking_hash_content(*serving, version.converted);
  version.id = served->id;
  target.rename(version);
  auto core =
      std::make_shared<Core>(std::move(serving), std::move(*staging), served, target, options);
  return std::unique_ptr<Receiver>(std::make_unique<ReceiverImpl>(std::move(core)));
}

}  // namespace weft
