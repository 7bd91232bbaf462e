#include "weft/serving/generation_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <random>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/core.h>

#include "weft/base/guarded.h"
#include "weft/serving/api_error.h"
#include "weft/serving/render.h"

namespace weft {
namespace {

// The end of a sequence, with its last token where that was held back to be answered in one.
struct EndEvent {
  std::optional<TokenEvent> token;
  FinishEvent finish;
};
using SequenceEvent = std::variant<std::vector<ScoredToken>, TokenEvent, EndEvent>;

// Ids only have to differ: a random start for the process, then a permutation of a counter.
std::string new_request_id() {
  static const std::uint64_t start = std::random_device{}() * 0x9E37'79B9'7F4A'7C15ull;
  static std::atomic<std::uint64_t> count = 0;  // only distinctness matters, not the order
  return fmt::format("{:016x}", (start + count.fetch_add(1)) * 0xBF58'476D'1CE4'E5B9ull);
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

http::Response stream_head() {
  http::Response head;
  head.headers = {{"Content-Type", "text/event-stream; charset=utf-8"},
                  {"Cache-Control", "no-cache"},
                  {"X-Accel-Buffering", "no"}};
  return head;
}

}  // namespace

// The runs that have not ended, so that they can be counted and aborted.
class GenerationService::Registry {
 public:
  void add(const std::shared_ptr<Run>& run) {
    runs_.with([&](auto& runs) { runs.emplace(run.get(), run); });
  }
  void remove(const Run* run) {
    runs_.with([&](auto& runs) { runs.erase(run); });
  }
  std::size_t size() const {
    return runs_.with([](const auto& runs) { return runs.size(); });
  }
  std::vector<std::shared_ptr<Run>> all() const {
    return runs_.with([](const auto& runs) {
      std::vector<std::shared_ptr<Run>> alive;
      for (const auto& [key, run] : runs) {
        if (auto held = run.lock()) alive.push_back(std::move(held));
      }
      return alive;
    });
  }

 private:
  Guarded<std::unordered_map<const Run*, std::weak_ptr<Run>>> runs_;
};

// One request on its way. The engine's sinks keep it alive until its sequences have ended.
class GenerationService::Run : public std::enable_shared_from_this<Run> {
 public:
  Run(const GenerationService& service, GenerationRequest request,
      std::shared_ptr<const ServedModel> model, std::shared_ptr<http::Exchange> exchange)
      : engine_(service.engine_),
        model_(std::move(model)),
        render_(service.render_),
        registry_(service.registry_),
        request_(std::move(request)),
        base_id_(request_.request_id.empty() ? new_request_id() : request_.request_id),
        head_{std::string(id_prefix(request_.api)) + base_id_, unix_seconds()},
        exchange_(std::move(exchange)) {
    for (const Prompt& prompt : request_.prompts) {
      for (std::uint32_t i = 0; i < request_.n; ++i)
        outputs_.emplace_back(request_, prompt, *model_);
    }
    cursors_.resize(outputs_.size());
  }
  ~Run() { registry_->remove(this); }

  // Submits all sequences, or none. Errors: the engine's.
  Result<void> start();
  // Any thread: puts the event aside, and wakes the renderer if it has something to do with it.
  void push(std::size_t sequence, SequenceEvent event);
  void cancel() const;
  // The client is gone: nothing is to be answered.
  void drop() {
    state_.with([](State& state) { state.dropped = true; });
    cancel();
  }
  // The token after which the engine ends a sequence that has `count` with it.
  bool is_last(std::uint32_t token, std::uint64_t count) const {
    return count >= request_.sampling.max_tokens || ends_sequence(request_, *model_, token);
  }
  bool is_called(std::string_view id) const { return id == base_id_ || id == head_.id; }

 private:
  struct State {
    std::vector<std::pair<std::size_t, SequenceEvent>> inbox;
    std::size_t unfinished = 0;
    bool started = false;    // all sequences are submitted
    bool scheduled = false;  // process() is posted
    bool dropped = false;
  };

  void schedule() {
    render_.post([self = shared_from_this()] { self->process(); });
  }
  void process();
  void apply(std::size_t sequence, SequenceEvent event);
  void stream(std::string events, bool complete);
  void answer(bool complete);
  void fail(const Error& error);

  Engine& engine_;
  const std::shared_ptr<const ServedModel> model_;
  JobThread& render_;
  const std::shared_ptr<Registry> registry_;
  const GenerationRequest request_;
  const std::string base_id_;
  const AnswerHead head_;
  const std::shared_ptr<http::Exchange> exchange_;
  std::vector<SequenceId> ids_;  // written before `started`, then constant
  Guarded<State> state_;

  // The render thread's.
  std::vector<SequenceOutput> outputs_;
  std::vector<StreamCursor> cursors_;
  std::size_t open_outputs_ = 0;
  bool begun_ = false;
  bool answered_ = false;
};

class GenerationService::Sink : public SequenceSink {
 public:
  Sink(std::shared_ptr<Run> run, std::size_t sequence)
      : run_(std::move(run)), sequence_(sequence) {}
  void on_prompt(std::vector<ScoredToken> prompt, std::shared_ptr<const VersionName>) override {
    run_->push(sequence_, std::move(prompt));
  }
  // The last token waits for the end that follows it at once: streams say both in one event, as
  // vLLM's do.
  void on_token(TokenEvent event) override {
    if (last_) run_->push(sequence_, *std::exchange(last_, std::nullopt));
    if (run_->is_last(event.token, ++tokens_)) {
      last_ = std::move(event);
    } else {
      run_->push(sequence_, std::move(event));
    }
  }
  void on_finish(FinishEvent event) override {
    run_->push(sequence_, EndEvent{std::exchange(last_, std::nullopt), std::move(event)});
  }

 private:
  std::shared_ptr<Run> run_;
  std::size_t sequence_;
  std::uint64_t tokens_ = 0;
  std::optional<TokenEvent> last_;
};

Result<void> GenerationService::Run::start() {
  open_outputs_ = outputs_.size();
  state_.with([&](State& state) { state.unfinished = outputs_.size(); });
  for (std::size_t sequence = 0; sequence < outputs_.size(); ++sequence) {
    SequenceRequest next = {outputs_[sequence].prompt().ids,
                            request_.sampling,
                            std::make_shared<Sink>(shared_from_this(), sequence),
                            request_.cache_salt,
                            request_.on_update,
                            model_->eos_token_ids};
    if (next.sampling.seed) *next.sampling.seed += sequence % request_.n;
    auto id = engine_.submit(std::move(next));
    if (!id) {
      drop();
      return std::move(id).error();
    }
    ids_.push_back(*id);
  }
  state_.with([](State& state) { state.started = state.scheduled = true; });
  schedule();
  return {};
}

void GenerationService::Run::push(std::size_t sequence, SequenceEvent event) {
  // A whole answer is rendered once, at its end, unless stop strings have to be found on the way.
  const bool eager = request_.stream || !request_.stop.empty();
  const bool wake = state_.with([&](State& state) {
    if (state.dropped) return false;
    const bool last = std::holds_alternative<EndEvent>(event) && --state.unfinished == 0;
    state.inbox.emplace_back(sequence, std::move(event));
    if (!state.started || state.scheduled || !(eager || last)) return false;
    state.scheduled = true;
    return true;
  });
  if (wake) schedule();
}

void GenerationService::Run::cancel() const {
  for (const SequenceId id : ids_) engine_.cancel(id);
}

void GenerationService::Run::apply(std::size_t sequence, SequenceEvent event) {
  SequenceOutput& output = outputs_[sequence];
  if (output.finished()) return;
  const auto add_token = [&](TokenEvent token) {
    output.add_token(std::move(token));
    if (output.finished()) engine_.cancel(ids_[sequence]);
  };
  if (auto* prompt = std::get_if<std::vector<ScoredToken>>(&event)) {
    output.add_prompt(std::move(*prompt));
  } else if (auto* token = std::get_if<TokenEvent>(&event)) {
    add_token(std::move(*token));
  } else {
    auto& end = std::get<EndEvent>(event);
    if (end.token) add_token(*std::move(end.token));
    output.finish(std::move(end.finish));
  }
  if (output.finished()) --open_outputs_;
}

void GenerationService::Run::process() {
  auto [inbox, dropped] = state_.with([](State& state) {
    state.scheduled = false;
    return std::pair(std::exchange(state.inbox, {}), state.dropped);
  });
  if (dropped || answered_) return;
  if (request_.stream && !std::exchange(begun_, true)) exchange_->begin_stream(stream_head());
  std::string events;
  for (auto& [sequence, event] : inbox) {
    apply(sequence, std::move(event));
    const SequenceOutput& output = outputs_[sequence];
    if (output.finished() && output.end().reason == FinishReason::kError) {
      stream(std::move(events), false);
      return fail(output.end().error.value_or(Error(ErrorCode::kInternal, "generation failed")));
    }
    // One event a token, however many have come meanwhile: clients count them.
    if (request_.stream) {
      events += render_events(request_, *model_, head_, outputs_, sequence, cursors_[sequence]);
    }
  }
  const bool complete = open_outputs_ == 0;
  if (!request_.stream) return answer(complete);
  stream(std::move(events), complete);
}

void GenerationService::Run::answer(bool complete) {
  if (!complete) return;
  answered_ = true;
  exchange_->respond(http::json_response(render_answer(request_, *model_, head_, outputs_)));
}

void GenerationService::Run::stream(std::string events, bool complete) {
  if (complete) events += render_stream_end(request_, *model_, head_, outputs_);
  if (!events.empty()) exchange_->write(std::move(events));
  if (complete) exchange_->end();
  answered_ = complete;
}

void GenerationService::Run::fail(const Error& error) {
  answered_ = true;
  cancel();
  if (!request_.stream) return exchange_->respond(api_error_response(error));
  exchange_->write(render_stream_error(error));
  exchange_->end();
}

GenerationService::GenerationService(Engine& engine, JobThread& render)
    : engine_(engine), render_(render), registry_(std::make_shared<Registry>()) {}
GenerationService::~GenerationService() = default;

void GenerationService::run(GenerationRequest request, std::shared_ptr<const ServedModel> model,
                            std::shared_ptr<http::Exchange> exchange) {
  const auto run = std::make_shared<Run>(*this, std::move(request), std::move(model), exchange);
  if (auto started = run->start(); !started)
    return exchange->respond(api_error_response(started.error()));
  registry_->add(run);
  exchange->on_close([weak = std::weak_ptr(run)] {
    if (const auto gone = weak.lock()) gone->drop();
  });
}

void GenerationService::abort(std::span<const std::string> ids) {
  for (const auto& run : registry_->all()) {
    const auto called = [&](const std::string& id) { return run->is_called(id); };
    if (ids.empty() || std::any_of(ids.begin(), ids.end(), called)) run->cancel();
  }
}

std::size_t GenerationService::active() const {
  return registry_->size();
}

}  // namespace weft
