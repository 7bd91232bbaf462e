#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "weft/format/json.h"
#include "weft/http/client.h"
#include "weft/protocol/waits.h"
#include "weft/trainer/scorer.h"
#include "weft/trainer/stop_watcher.h"

namespace weft {
namespace {

using Scores = std::vector<std::optional<double>>;

boost::json::array ids_json(std::span<const std::uint32_t> ids) {
  return boost::json::array(ids.begin(), ids.end());
}

std::string request_body(const Experience& experience, std::size_t begin, std::size_t end) {
  boost::json::array items;
  for (std::size_t i = begin; i < end; ++i) {
    const Rollout& rollout = experience.rollouts[i];
    items.push_back({{"question", experience.problem_of(i).question},
                     {"answer", answer_text(rollout)},
                     {"ended", rollout.ended},
                     {"question_ids", ids_json(experience.prompts[i])},
                     {"answer_ids", ids_json(rollout.tokens)}});
  }
  return boost::json::serialize(boost::json::object{{"samples", std::move(items)}});
}

Result<Scores> parse_scores(const http::Response& response, std::size_t count) {
  if (response.status != 200) return http::error_of_response(response);
  WEFT_TRY(const boost::json::value root, parse_json(response.body));
  const auto* object = root.if_object();
  const auto* field = object == nullptr ? nullptr : object->if_contains("scores");
  const auto* list = field == nullptr ? nullptr : field->if_array();
  if (list == nullptr || list->size() != count) {
    return Error(ErrorCode::kCorrupt, fmt::format("`scores` must be a list of {}", count));
  }
  Scores scores;
  for (const boost::json::value& value : *list) {
    boost::system::error_code error;
    const double score = value.is_null() ? 0 : value.to_number<double>(error);
    if (error || !std::isfinite(score)) {
      return Error(ErrorCode::kCorrupt, "`scores` must be finite numbers or null");
    }
    scores.push_back(value.is_null() ? std::nullopt : std::optional(score));
  }
  return scores;
}

// The request is wrong, and would be wrong again.
bool is_final(const Result<http::Response>& response) {
  return response && response->status >= 400 && response->status < 500 && response->status != 408 &&
         response->status != 429;
}

class HttpScorer final : public Scorer {
 public:
  HttpScorer(http::Url url, const HttpScorerOptions& options) : options_(options) {
    // The URL is the request's own: the client puts its path before a target, which is empty here.
    target_ = std::exchange(url.path, "");
    if (target_.empty()) target_ = "/";
    http::ClientOptions client;
    client.connect_timeout = client.idle_timeout = client.request_timeout = options.timeout;
    client.max_connections = 8;
    client.ca_file = options.ca_file;
    client_ = http::Client::make(std::move(url), client);
    if (options.stop != nullptr) {
      watcher_.emplace(*options.stop, [this] { client_->cancel(); });
    }
  }

  Result<Scores> blocking_score(const Experience& experience) override;
  ScoreCounts counts() const override { return counts_; }

 private:
  struct Part {
    std::size_t begin = 0;
    http::Request request;
    std::size_t size = 0;
  };
  std::vector<Part> split(const Experience& experience) const;

  HttpScorerOptions options_;
  std::string target_;
  std::unique_ptr<http::Client> client_;
  ScoreCounts counts_;
  std::optional<StopWatcher> watcher_;  // of client_: ends first
};

std::vector<HttpScorer::Part> HttpScorer::split(const Experience& experience) const {
  std::vector<Part> parts;
  const std::size_t all = experience.rollouts.size();
  for (std::size_t begin = 0; begin < all; begin += options_.batch) {
    const std::size_t end = std::min<std::size_t>(begin + options_.batch, all);
    http::Request request;
    request.method = "POST";
    request.target = target_;
    request.headers = {{"Content-Type", "application/json"}};
    request.body = request_body(experience, begin, end);
    parts.push_back({begin, std::move(request), end - begin});
  }
  return parts;
}

Result<Scores> HttpScorer::blocking_score(const Experience& experience) {
  Scores scores(experience.rollouts.size());
  std::vector<Part> parts = split(experience);
  std::optional<Error> error;
  for (unsigned tries = 0; !parts.empty() && tries <= options_.retries; ++tries) {
    if (tries > 0) {
      WEFT_TRY_VOID(blocking_pause(wait_after(tries, options_.first_wait), options_.stop));
      counts_.retries += parts.size();
    }
    std::vector<http::Request> requests;
    for (const Part& part : parts) requests.push_back(part.request);
    counts_.requests += requests.size();
    const auto responses = client_->blocking_send_all(requests);
    std::vector<Part> left;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      auto scored = responses[i] ? parse_scores(*responses[i], parts[i].size)
                                 : Result<Scores>(responses[i].error());
      if (scored) {
        std::ranges::move(*scored, scores.begin() + static_cast<std::ptrdiff_t>(parts[i].begin));
        continue;
      }
      error = scored.error();
      if (is_final(responses[i]))
        return std::move(*error).with_context("the scorer " + options_.url);
      left.push_back(std::move(parts[i]));
    }
    parts = std::move(left);
  }
  const auto failed = static_cast<std::uint64_t>(
      std::ranges::count_if(scores, [](const auto& score) { return !score; }));
  counts_.failed += failed;
  if (failed == scores.size() && error) {
    return std::move(*error).with_context(
        fmt::format("the scorer {}, after {} tries", options_.url, options_.retries + 1));
  }
  return scores;
}

}  // namespace

Result<std::unique_ptr<Scorer>> make_http_scorer(const HttpScorerOptions& options) {
  WEFT_TRY(auto url, http::Url::parse(options.url));
  return std::unique_ptr<Scorer>(std::make_unique<HttpScorer>(std::move(url), options));
}

}  // namespace weft
