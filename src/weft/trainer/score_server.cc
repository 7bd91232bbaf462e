#include "weft/trainer/score_server.h"

#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "weft/base/job_thread.h"
#include "weft/format/json.h"

namespace weft {
namespace {

Error bad_request(std::size_t sample, std::string_view field, std::string_view expected) {
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("samples[{}].{} must be {}", sample, field, expected));
}

// Ids that a task's model can read; nothing if it is another thing.
std::optional<std::vector<std::uint32_t>> try_ids(const boost::json::object& sample,
                                                  std::string_view name) {
  const auto* value = sample.if_contains(name);
  const auto* list = value == nullptr ? nullptr : value->if_array();
  if (list == nullptr || list->empty()) return std::nullopt;
  std::vector<std::uint32_t> ids;
  for (const boost::json::value& element : *list) {
    boost::system::error_code error;
    const auto id = element.to_number<std::uint32_t>(error);
    if (error || id >= Vocabulary::kCharacters.size()) return std::nullopt;
    ids.push_back(id);
  }
  return ids;
}

std::string scores_json(const std::vector<std::optional<double>>& scores) {
  boost::json::array list;
  for (const auto& score : scores) {
    list.push_back(score ? boost::json::value(*score) : boost::json::value(nullptr));
  }
  return boost::json::serialize(boost::json::object{{"scores", std::move(list)}});
}

class HttpScoreServer final : public ScoreServer {
 public:
  explicit HttpScoreServer(std::unique_ptr<Scorer> scorer) : scorer_(std::move(scorer)) {}
  ~HttpScoreServer() override {
    server_.reset();  // no requests come any more
    judge_.blocking_stop();
  }

  Result<void> listen(const http::ServerOptions& options) {
    http::Route score;
    score.method = "POST";
    score.pattern = "/score";
    score.access = http::Access::kRead;
    score.handler = [this](const http::Request& request, std::shared_ptr<http::Exchange> exchange) {
      judge_.post([this, body = request.body, exchange = std::move(exchange)] {
        exchange->respond(blocking_answer(body));
      });
    };
    http::Route health;
    health.method = "GET";
    health.pattern = "/health";
    health.access = http::Access::kOpen;
    health.handler = [](const http::Request&, std::shared_ptr<http::Exchange> exchange) {
      exchange->respond({});
    };
    std::vector<http::Route> routes;
    routes.push_back(std::move(score));
    routes.push_back(std::move(health));
    WEFT_TRY(server_, http::Server::create(options, std::move(routes)));
    return {};
  }

  std::uint16_t port() const override { return server_->port(); }

 private:
  http::Response blocking_answer(std::string_view body) {
    const auto experience = parse_score_request(body);
    if (!experience) return http::error_response(experience.error());
    const auto scores = scorer_->blocking_score(*experience);
    if (!scores) return http::error_response(scores.error());
    return http::json_response(scores_json(*scores));
  }

  std::unique_ptr<Scorer> scorer_;  // of judge_
  JobThread judge_{"weft-judge", JobThread::Rest::kDrop};
  std::unique_ptr<http::Server> server_;
};

}  // namespace

Result<Experience> parse_score_request(std::string_view body) {
  WEFT_TRY(const boost::json::value root, parse_json(body));
  const auto* object = root.if_object();
  const auto* field = object == nullptr ? nullptr : object->if_contains("samples");
  const auto* samples = field == nullptr ? nullptr : field->if_array();
  if (samples == nullptr) return Error(ErrorCode::kInvalidArgument, "samples must be a list");
  Experience experience;
  for (std::size_t i = 0; i < samples->size(); ++i) {
    const auto* sample = (*samples)[i].if_object();
    if (sample == nullptr) return bad_request(i, "", "an object");
    auto question = try_ids(*sample, "question_ids"), answer = try_ids(*sample, "answer_ids");
    if (!question) return bad_request(i, "question_ids", "ids of the tasks' vocabulary");
    if (!answer) return bad_request(i, "answer_ids", "ids of the tasks' vocabulary");
    const auto* ended = sample->if_contains("ended");
    if (ended == nullptr || !ended->is_bool()) return bad_request(i, "ended", "true or false");
    Rollout rollout;
    rollout.tokens = std::move(*answer);
    rollout.ended = ended->get_bool();
    experience.problems.push_back({string_member(*sample, "question"), ""});
    experience.prompts.push_back(std::move(*question));
    experience.rollouts.push_back(std::move(rollout));
  }
  return experience;
}

Result<std::unique_ptr<ScoreServer>> ScoreServer::create(std::unique_ptr<Scorer> scorer,
                                                         const http::ServerOptions& options) {
  auto server = std::make_unique<HttpScoreServer>(std::move(scorer));
  WEFT_TRY_VOID(server->listen(options));
  return std::unique_ptr<ScoreServer>(std::move(server));
}

}  // namespace weft
