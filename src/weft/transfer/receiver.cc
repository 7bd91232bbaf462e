#include "weft/transfer/receiver.h"

#include <utility>

#include <fmt/core.h>

#include "weft/transfer/internal/core.h"
#include "weft/transfer/internal/messages.h"
#include "weft/transfer/upload_routes.h"

namespace weft {
namespace {

using internal::Core;
using ExchangePtr = std::shared_ptr<http::Exchange>;

class ReceiverImpl final : public Receiver {
 public:
  explicit ReceiverImpl(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  ~ReceiverImpl() override { core_->blocking_shutdown(); }

  std::vector<http::Route> routes() override;

  void start_update(const std::string& owner, Done done) override { done(core_->start(owner)); }
  void update(const std::string& owner, std::optional<std::string> path, Done done) override {
    core_->update(owner, std::move(path), std::move(done));
  }
  void refuse_update(const std::string& owner, const Error& error) override {
    core_->refuse(owner, error);
  }
  void finish_update(const std::string& owner, std::optional<std::string> label,
                     Done done) override {
    core_->finish(owner, std::move(label),
                  [done = std::move(done)](const Result<CommitReport>& report) {
                    done(report ? Result<void>() : report.error());
                  });
  }
  Result<void> set_label(const std::string& label) override { return core_->set_label(label); }
  void checksums(
      std::function<void(std::vector<std::pair<std::string, std::string>>)> done) override {
    core_->checksums(std::move(done));
  }

 private:
  std::shared_ptr<Core> core_;
};

void respond_manifest(Core& core, const http::Request& request, http::Exchange& exchange) {
  const auto served = core.served();
  const std::string_view id = request.param("id");
  if (id != served->id) {
    return exchange.respond(http::error_response(
        Error(ErrorCode::kNotFound, fmt::format("no version `{}` here, only {}", id, served->id))));
  }
  http::Response response = http::json_response(served->manifest);
  response.headers.set("ETag", '"' + served->id + '"');
  response.headers.set("Cache-Control", "public, max-age=31536000, immutable, no-transform");
  exchange.respond(std::move(response));
}

std::vector<http::Route> ReceiverImpl::routes() {
  auto table = upload_routes(core_);
  table.push_back({"GET", "/weft/v1/versions/current",
                   [core = core_](const http::Request&, const ExchangePtr& exchange) {
                     exchange->respond(
                         http::json_response(internal::version_json(core->current())));
                   },
                   nullptr});
  table.push_back({"GET", "/weft/v1/versions/{id}/manifest",
                   [core = core_](const http::Request& request, const ExchangePtr& exchange) {
                     respond_manifest(*core, request, *exchange);
                   },
                   nullptr});
  return table;
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
