#include <utility>

#include "weft/http/session-inl.h"

namespace weft::http {
namespace {

class ExchangeImpl final : public Exchange {
 public:
  ExchangeImpl(std::shared_ptr<Session> session, std::shared_ptr<Answer> answer)
      : loop_(session->loop), session_(std::move(session)), answer_(std::move(answer)) {}

  ~ExchangeImpl() override {
    apply([](Session& session, Answer& answer) {
      if (answer.complete) return;
      if (answer.started) return session.close();  // a stream without an end must not look whole
      answer.head = error_response(Error(ErrorCode::kInternal, "the request was not answered"));
      answer.started = answer.complete = true;
    });
  }

  void respond(Response response) override { respond_from(std::move(response), {}, nullptr); }

  void respond_from(Response head, std::vector<BodyPart> parts,
                    std::shared_ptr<const void> keep_alive) override {
    apply([head = std::move(head), parts = std::move(parts), keep_alive = std::move(keep_alive)](
              Session&, Answer& answer) mutable {
      if (answer.started) return;
      answer.head = std::move(head);
      answer.parts = std::move(parts);
      answer.keep_alive = std::move(keep_alive);
      answer.started = answer.complete = true;
    });
  }

  void begin_stream(Response head) override {
    apply([head = std::move(head)](Session&, Answer& answer) mutable {
      if (answer.started) return;
      answer.head = std::move(head);
      answer.head.body.clear();
      answer.started = answer.streaming = true;
    });
  }

  void write(std::string piece) override {
    if (piece.empty() || answer_->cut.load(std::memory_order_relaxed)) return;
    if (answer_->queued_bytes.fetch_add(piece.size(), std::memory_order_relaxed) >
        kMaxQueuedBytes) {
      answer_->cut.store(true, std::memory_order_relaxed);
      apply([](Session& session, Answer&) { session.close(); });
      return;
    }
    apply([piece = std::move(piece)](Session&, Answer& answer) mutable {
      if (!answer.complete) answer.pieces.push_back(std::move(piece));
    });
  }

  void end() override {
    apply([](Session&, Answer& answer) { answer.complete = true; });
  }

  void close() override {
    apply([](Session& session, Answer&) { session.close(); });
  }

  void close_at_stop() override {
    apply([](Session& session, Answer& answer) {
      answer.closes_at_stop = true;
      if (session.loop->draining && !answer.started) session.close();
    });
  }

  void on_close(std::function<void()> closed) override {
    auto callback = std::make_shared<std::function<void()>>(std::move(closed));
    const bool alive = run_on_loop([answer = answer_, callback] {
      if (answer->gone) return (*callback)();
      if (!answer->over) answer->closed = std::move(*callback);
    });
    if (!alive) (*callback)();
  }

 private:
  // At once if this is the loop's thread and no earlier call is still on its way there: calls must
  // take effect in order, the destructor's last. Returns false when the loop has ended.
  template <typename Task>
  bool run_on_loop(Task&& task) {
    if (loop_->is_this_thread() && answer_->posted == 0) {
      task();
      return true;
    }
    ++answer_->posted;
    return loop_->post([answer = answer_, task = std::forward<Task>(task)]() mutable {
      --answer->posted;
      task();
    });
  }
  // Changes the answer on the loop's thread and tells the session.
  template <typename Change>
  void apply(Change&& change) {
    run_on_loop(
        [session = session_, answer = answer_, change = std::forward<Change>(change)]() mutable {
          if (answer->over) return;
          change(*session, *answer);
          session->wake();
        });
  }

  const std::shared_ptr<Loop> loop_;
  const std::shared_ptr<Session> session_;
  const std::shared_ptr<Answer> answer_;
};

}  // namespace

std::shared_ptr<Exchange> make_exchange(std::shared_ptr<Session> session,
                                        std::shared_ptr<Answer> answer) {
  return std::make_shared<ExchangeImpl>(std::move(session), std::move(answer));
}

}  // namespace weft::http
