#include "weft/transfer/upload_routes.h"

#include <algorithm>
#include <charconv>
#include <random>
#include <utility>

#include <fmt/core.h>

#include "weft/protocol/block_frame.h"
#include "weft/protocol/receiver_machine.h"
#include "weft/transfer/internal/messages.h"
#include "weft/transfer/internal/sinks.h"

namespace weft {
namespace {

using ExchangePtr = std::shared_ptr<http::Exchange>;

// A skeleton with digests: about 70 bytes for each 8 MiB, 64 MiB for 7 TB of weights.
constexpr std::uint64_t kSkeletonLimitBytes = 64u << 20;
constexpr std::uint64_t kControlLimitBytes = 64u << 10;

std::optional<std::uint64_t> content_length(const http::Request& request) {
  const auto text = request.headers.try_get("Content-Length");
  std::uint64_t length = 0;
  if (!text ||
      std::from_chars(text->data(), text->data() + text->size(), length).ec != std::errc()) {
    return std::nullopt;
  }
  return length;
}

struct WeightsQuery {
  CommitRequest request;
  bool commits = true;
};

Result<WeightsQuery> parse_weights_query(const http::Request& request) {
  WeightsQuery query;
  WEFT_TRY(query.request, internal::parse_commit_query(request));
  const std::string_view commits = request.try_query("commit").value_or("true");
  if (commits != "true" && commits != "false") {
    return Error(ErrorCode::kInvalidArgument, "commit: expected true or false", "query.commit");
  }
  query.commits = commits == "true";
  return query;
}

// The handlers.
class Uploads : public std::enable_shared_from_this<Uploads> {
 public:
  explicit Uploads(std::shared_ptr<UploadHost> host) : host_(std::move(host)) {}

  Result<std::unique_ptr<http::BodySink>> put_weights(const http::Request& request,
                                                      const ExchangePtr& exchange);
  Result<std::unique_ptr<http::BodySink>> put_blocks(const http::Request& request,
                                                     const ExchangePtr& exchange);
  void open(const http::Request& request, const ExchangePtr& exchange);
  void get(const http::Request& request, const ExchangePtr& exchange);
  void seal(const http::Request& request, const ExchangePtr& exchange);
  void commit(const http::Request& request, const ExchangePtr& exchange);
  void abort(const http::Request& request, const ExchangePtr& exchange);
  void status(const http::Request& request, const ExchangePtr& exchange);
  // Counts the refusal of a body before its first byte.
  template <typename T>
  Result<T> counted(Result<T> result) {
    if (!result) host_->refused(result.error());
    return result;
  }

 private:
  // An upload's name: which process gave it, and the epoch.
  std::string upload_id(Epoch epoch) const { return fmt::format("{}-{}", instance_, epoch); }
  Result<Epoch> epoch_of(const http::Request& request) const;
  // Calls `use(owner, epoch)` or answers with the error.
  template <typename Use>
  void with_upload(const http::Request& request, const ExchangePtr& exchange, Use&& use);
  static std::function<void()> closer_of(const ExchangePtr& exchange);
  std::shared_ptr<void> add_connection(const ExchangePtr& exchange) {
    return host_->add_connection(closer_of(exchange));
  }
  void respond(http::Exchange& exchange, const Error& error);
  void respond_progress(const std::string& owner, Epoch epoch, http::Exchange& exchange);
  UploadHost::Done<CommitReport> responding(ExchangePtr exchange);

  const std::shared_ptr<UploadHost> host_;
  const std::shared_ptr<internal::BlockHolders> holders_ =
      std::make_shared<internal::BlockHolders>();
  const std::string instance_ = fmt::format("{:08x}", std::random_device()());
};

Result<Epoch> Uploads::epoch_of(const http::Request& request) const {
  const std::string_view name = request.param("upload");
  const std::string prefix = instance_ + "-";
  Epoch epoch = 0;
  if (name.starts_with(prefix)) {
    const char* const end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + prefix.size(), end, epoch);
    if (parsed.ec == std::errc() && parsed.ptr == end && epoch != 0) return epoch;
  }
  return Error(ErrorCode::kNotFound, fmt::format("no upload `{}` here: open one", name));
}

template <typename Use>
void Uploads::with_upload(const http::Request& request, const ExchangePtr& exchange, Use&& use) {
  const auto owner = owner_of(request);
  if (!owner) return respond(*exchange, owner.error());
  const auto epoch = epoch_of(request);
  if (!epoch) return respond(*exchange, epoch.error());
  std::forward<Use>(use)(*owner, *epoch);
}

std::function<void()> Uploads::closer_of(const ExchangePtr& exchange) {
  return [weak = std::weak_ptr(exchange)] {
    if (const auto alive = weak.lock()) alive->close();
  };
}

void Uploads::respond(http::Exchange& exchange, const Error& error) {
  host_->refused(error);
  auto response = http::error_response(error);
  if (error.param() == kOnThirdParam) response.headers.set("Retry-After", "1");
  exchange.respond(std::move(response));
}

UploadHost::Done<CommitReport> Uploads::responding(ExchangePtr exchange) {
  return [self = shared_from_this(),
          exchange = std::move(exchange)](const Result<CommitReport>& report) {
    if (!report) return self->respond(*exchange, report.error());
    exchange->respond(http::json_response(internal::commit_json(*report)));
  };
}

Result<std::unique_ptr<http::BodySink>> Uploads::put_weights(const http::Request& request,
                                                             const ExchangePtr& exchange) {
  WEFT_TRY(const std::string owner, owner_of(request));
  WEFT_TRY(WeightsQuery query, parse_weights_query(request));
  WEFT_TRY(const Epoch epoch, host_->open_body(owner));
  auto staged = [self = shared_from_this(), owner, epoch, query = std::move(query),
                 connection = add_connection(exchange), exchange](const Result<void>& result) {
    if (!result) return self->respond(*exchange, result.error());
    if (!query.commits) return self->respond_progress(owner, epoch, *exchange);
    auto committed = [self, owner, epoch,
                      answer = self->responding(exchange)](const Result<CommitReport>& report) {
      // Nobody holds the name of this upload, to commit it in another way.
      if (!report) static_cast<void>(self->host_->abort(owner, epoch));
      answer(report);
    };
    self->host_->commit(owner, epoch, query.request, std::move(committed));
  };
  return internal::make_file_sink(host_, owner, epoch, content_length(request), std::move(staged));
}

Result<std::unique_ptr<http::BodySink>> Uploads::put_blocks(const http::Request& request,
                                                            const ExchangePtr& exchange) {
  WEFT_TRY(const std::string owner, owner_of(request));
  WEFT_TRY(const Epoch epoch, epoch_of(request));
  // Refuses, too, a body whose entries are not known yet.
  WEFT_TRY_VOID(host_->progress(owner, epoch));
  auto done = [self = shared_from_this(), connection = add_connection(exchange),
               exchange](const Result<internal::BlockCounts>& counts) {
    if (!counts) return self->respond(*exchange, counts.error());
    exchange->respond(http::json_response(
        internal::blocks_json(counts->verified, counts->repeated, counts->busy)));
  };
  return internal::make_blocks_sink(host_, epoch, holders_, closer_of(exchange), std::move(done));
}

void Uploads::open(const http::Request& request, const ExchangePtr& exchange) {
  const auto owner = owner_of(request);
  if (!owner) return respond(*exchange, owner.error());
  // A skeleton with digests takes milliseconds to read: not for an I/O thread.
  host_->post([self = shared_from_this(), owner = *owner, body = request.body, exchange] {
    const auto refuse = [self, owner, exchange](const Error& error) {
      if (error.code() == ErrorCode::kInvalidArgument) self->host_->refuse(owner, error);
      self->respond(*exchange, error);
    };
    auto offer = internal::parse_upload_request(body);
    if (!offer) return refuse(offer.error());
    self->host_->open_upload(
        owner, *std::move(offer), [self, exchange, refuse](const Result<UploadProgress>& opened) {
          if (!opened) return refuse(opened.error());
          exchange->respond(http::json_response(
              internal::upload_json(self->upload_id(opened->epoch), *opened), 201));
        });
  });
}

void Uploads::respond_progress(const std::string& owner, Epoch epoch, http::Exchange& exchange) {
  const auto progress = host_->progress(owner, epoch);
  if (!progress) return respond(exchange, progress.error());
  exchange.respond(http::json_response(internal::upload_json(upload_id(epoch), *progress)));
}

void Uploads::get(const http::Request& request, const ExchangePtr& exchange) {
  with_upload(request, exchange, [&](const std::string& owner, Epoch epoch) {
    respond_progress(owner, epoch, *exchange);
  });
}

void Uploads::seal(const http::Request& request, const ExchangePtr& exchange) {
  with_upload(request, exchange, [&](const std::string& owner, Epoch epoch) {
    host_->seal(owner, epoch,
                [self = shared_from_this(), exchange](const Result<SealedVersion>& sealed) {
                  if (!sealed) return self->respond(*exchange, sealed.error());
                  exchange->respond(http::json_response(internal::sealed_json(*sealed)));
                });
  });
}

void Uploads::commit(const http::Request& request, const ExchangePtr& exchange) {
  with_upload(request, exchange, [&](const std::string& owner, Epoch epoch) {
    auto wanted = internal::parse_commit_request(request.body);
    if (!wanted) return respond(*exchange, wanted.error());
    host_->commit(owner, epoch, *std::move(wanted), responding(exchange));
  });
}

void Uploads::abort(const http::Request& request, const ExchangePtr& exchange) {
  with_upload(request, exchange, [&](const std::string& owner, Epoch epoch) {
    const auto aborted = host_->abort(owner, epoch);
    if (!aborted) return respond(*exchange, aborted.error());
    exchange->respond(http::json_response(R"({"state":"aborted"})"));
  });
}

void Uploads::status(const http::Request&, const ExchangePtr& exchange) {
  const UploadHost::Status status = host_->status();
  exchange->respond(
      http::json_response(internal::status_json(status, instance_, upload_id(status.epoch))));
}

}  // namespace

Result<std::string> owner_of(const http::Request& request) {
  const auto session = request.headers.try_get(kSessionHeader);
  if (!session) return std::string(kAnonymousOwner);
  const bool printable = std::ranges::all_of(*session, [](char c) { return c >= ' ' && c <= '~'; });
  if (session->empty() || session->size() > kMaxSessionBytes || !printable) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: expected 1 to {} printable ASCII characters", kSessionHeader,
                             kMaxSessionBytes));
  }
  return std::string(*session);
}

std::vector<http::Route> upload_routes(std::shared_ptr<UploadHost> host) {
  std::vector<http::Route> table;
  const auto uploads = std::make_shared<Uploads>(std::move(host));
  const auto plain = [&](const char* method, const char* pattern,
                         void (Uploads::*handler)(const http::Request&, const ExchangePtr&),
                         std::uint64_t limit_bytes = kControlLimitBytes) {
    auto call = [uploads, handler](const http::Request& request, const ExchangePtr& exchange) {
      (*uploads.*handler)(request, exchange);
    };
    const bool is_read = std::string_view(method) == "GET";
    table.push_back({method, pattern, std::move(call), nullptr, limit_bytes,
                     is_read ? http::Access::kRead : http::Access::kAdmin});
  };
  const auto bulk = [&](const char* method, const char* pattern,
                        Result<std::unique_ptr<http::BodySink>> (Uploads::*handler)(
                            const http::Request&, const ExchangePtr&)) {
    auto call = [uploads, handler](const http::Request& request, const ExchangePtr& exchange) {
      return uploads->counted((*uploads.*handler)(request, exchange));
    };
    table.push_back({method, pattern, nullptr, std::move(call), 0, http::Access::kAdmin});
  };
  bulk("PUT", "/weft/v1/weights", &Uploads::put_weights);
  bulk("POST", "/weft/v1/weights", &Uploads::put_weights);
  plain("POST", "/weft/v1/uploads", &Uploads::open, kSkeletonLimitBytes);
  plain("GET", "/weft/v1/uploads/{upload}", &Uploads::get);
  plain("DELETE", "/weft/v1/uploads/{upload}", &Uploads::abort);
  bulk("PUT", "/weft/v1/uploads/{upload}/blocks", &Uploads::put_blocks);
  plain("POST", "/weft/v1/uploads/{upload}/seal", &Uploads::seal);
  plain("POST", "/weft/v1/uploads/{upload}/commit", &Uploads::commit);
  plain("GET", "/weft/v1/status", &Uploads::status);
  return table;
}

}  // namespace weft
