#include "weft/transfer/follower.h"

#include <condition_variable>
#include <mutex>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "weft/http/server.h"

namespace weft {
namespace {

// Has one head, and answers at once: such sources are to be borne with.
class Origin {
 public:
  Origin() {
    http::Route route;
    route.method = "GET";
    route.pattern = "/weft/v1/heads/main";
    route.handler = [this](const http::Request& request,
                           const std::shared_ptr<http::Exchange>& exchange) {
      exchange->respond(answer(request));
    };
    http::ServerOptions options;
    options.port = 0;
    std::vector<http::Route> routes;
    routes.push_back(std::move(route));
    server_ = http::Server::create(options, std::move(routes)).value();
  }
  ~Origin() { server_->blocking_stop(std::chrono::seconds(5)); }

  std::unique_ptr<http::Client> client() const {
    return http::Client::make(
        http::Url::parse(fmt::format("http://127.0.0.1:{}", server_->port())).value());
  }
  void move_head(const std::string& id) {
    const std::lock_guard lock(mutex_);
    head_ = id;
  }
  void blocking_wait_for_a_request() {
    std::unique_lock lock(mutex_);
    asked_.wait(lock, [&] { return requests_ > 0; });
  }

 private:
  http::Response answer(const http::Request& request) {
    const std::lock_guard lock(mutex_);
    ++requests_;
    asked_.notify_all();
    if (head_.empty()) return http::error_response(Error(ErrorCode::kNotFound, "no such head"));
    if (request.headers.try_get("If-None-Match") == '"' + head_ + '"') {
      return http::json_response("", 304);
    }
    return http::json_response(fmt::format(R"({{"name":"main","id":"{}","label":"l"}})", head_));
  }

  std::mutex mutex_;
  std::condition_variable asked_;
  std::string head_;
  unsigned requests_ = 0;
  std::unique_ptr<http::Server> server_;
};

// What a follower has said.
class Said {
 public:
  Result<void> add(const HeadPlace& place, bool fails = false) {
    const std::lock_guard lock(mutex_);
    ids_.push_back(place.id);
    changed_.notify_all();
    if (fails) return Error(ErrorCode::kDisconnected, "as told");
    return {};
  }
  std::vector<std::string> blocking_wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ids_.size() >= count; });
    return ids_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> ids_;
};

std::string id_of(char digit) {
  return "blake3:" + std::string(64, digit);
}

TEST(HeadFollower, SaysEachPlaceOnceAndStopsWhenTold) {
  Origin origin;
  Said said;
  HeadFollower follower(origin.client(), {},
                        [&](const HeadPlace& place) { return said.add(place); });

  origin.move_head(id_of('1'));  // there was none before
  EXPECT_EQ(said.blocking_wait_for(1).back(), id_of('1'));
  origin.move_head(id_of('2'));

  EXPECT_EQ(said.blocking_wait_for(2), (std::vector{id_of('1'), id_of('2')}));
  follower.blocking_stop();
  follower.blocking_stop();
}

TEST(HeadFollower, SaysAgainWhatCouldNotBeTaken) {
  Origin origin;
  origin.move_head(id_of('1'));
  Said said;
  HeadFollower follower(origin.client(), {}, [&, tries = 0](const HeadPlace& place) mutable {
    return said.add(place, ++tries < 3);
  });

  EXPECT_EQ(said.blocking_wait_for(3), std::vector(3, id_of('1')));
}

TEST(HeadFollower, DoesNotSayWhatIsKnown) {
  Origin origin;
  origin.move_head(id_of('1'));
  Said said;
  HeadFollower follower(origin.client(), {.known_id = id_of('1')},
                        [&](const HeadPlace& place) { return said.add(place); });
  origin.blocking_wait_for_a_request();

  origin.move_head(id_of('2'));

  EXPECT_EQ(said.blocking_wait_for(1), std::vector{id_of('2')});
}

}  // namespace
}  // namespace weft
