#include "weft/transfer/internal/polls.h"

#include <algorithm>
#include <utility>

#include "weft/base/log.h"

namespace weft::internal {
namespace {

constexpr int kNotModified = 304;

}  // namespace

struct Polls::Poll {
  Poll(Look look_, Clock::time_point deadline_, std::shared_ptr<http::Exchange> exchange_)
      : look(std::move(look_)), deadline(deadline_), exchange(std::move(exchange_)) {}

  // Answers if there is news or the time is up. Returns whether it is over.
  bool try_answer(Clock::time_point now) {
    std::unique_lock lock(mutex);
    if (exchange == nullptr) return true;
    http::Response response = look();
    if (response.status == kNotModified && now < deadline) return false;
    const auto answered = std::exchange(exchange, nullptr);
    lock.unlock();
    answered->respond(std::move(response));
    return true;
  }
  // Does not look any more once this has returned.
  void end() {
    const std::lock_guard lock(mutex);
    exchange = nullptr;
  }

  const Look look;
  const Clock::time_point deadline;
  std::mutex mutex;                          // held while it looks
  std::shared_ptr<http::Exchange> exchange;  // null when it is over
};

Polls::Polls(Subscribe subscribe, std::size_t limit)
    : subscribe_(std::move(subscribe)), limit_(limit), thread_([this] { run(); }) {}

Polls::~Polls() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Polls::wait(Look look, std::chrono::seconds wait, std::shared_ptr<http::Exchange> exchange) {
  const auto poll = std::make_shared<Poll>(std::move(look), Clock::now() + wait, exchange);
  bool subscribed = false;
  {
    const std::lock_guard lock(mutex_);
    if (polls_.size() >= limit_) {
      return exchange->respond(http::error_response(
          Error(ErrorCode::kOverloaded, "too many requests wait for a head to move")));
    }
    polls_.push_back(poll);
    subscribed = subscription_ != nullptr;
  }
  exchange->on_close([this, poll] { leave(poll); });
  exchange->close_at_stop();
  if (!subscribed) subscribe();
  changed_.notify_all();
  // It may have moved before the subscription.
  if (poll->try_answer(Clock::now())) leave(poll);
}

void Polls::subscribe() {
  auto subscription = subscribe_([this] {
    const std::lock_guard lock(mutex_);
    moved_ = true;
    changed_.notify_all();
  });
  const std::lock_guard lock(mutex_);
  if (!polls_.empty() && subscription_ == nullptr) subscription_.swap(subscription);
}

void Polls::leave(const std::shared_ptr<Poll>& poll) {
  poll->end();
  std::shared_ptr<void> subscription;  // dropped without the lock
  const std::lock_guard lock(mutex_);
  std::erase(polls_, poll);
  if (polls_.empty()) subscription.swap(subscription_);
}

// Waits until something has moved or a deadline has come. Returns the polls that this concerns.
std::vector<std::shared_ptr<Polls::Poll>> Polls::blocking_next() {
  std::unique_lock lock(mutex_);
  auto deadline = Clock::time_point::max();
  for (const auto& poll : polls_) deadline = std::min(deadline, poll->deadline);
  if (!moved_ && !stopped_) {
    if (polls_.empty()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, deadline);
    }
  }
  if (std::exchange(moved_, false)) return polls_;
  std::vector<std::shared_ptr<Poll>> due;
  const auto now = Clock::now();
  for (const auto& poll : polls_) {
    if (poll->deadline <= now) due.push_back(poll);
  }
  return due;
}

void Polls::run() {
  set_thread_name("weft-poll");
  for (;;) {
    for (const auto& poll : blocking_next()) {
      if (poll->try_answer(Clock::now())) leave(poll);
    }
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
  }
}

}  // namespace weft::internal
