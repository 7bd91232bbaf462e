#pragma once
// An engine that does what the test says.

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "weft/base/guarded.h"
#include "weft/engine/engine.h"

namespace weft {

class ScriptedEngine : public Engine {
 public:
  const ModelConfig& config() const override { return config_; }
  const EngineOptions& options() const override { return options_; }
  Result<SequenceId> submit(SequenceRequest request) override {
    if (requests.size() == room) return Error(ErrorCode::kOverloaded, "no room");
    requests.push_back(std::move(request));
    return SequenceId{requests.size()};
  }
  void cancel(SequenceId id) override {
    cancelled.with([&](auto& ids) { ids.push_back(id); });
  }
  void pause(PauseMode, bool, std::function<void()> done) override { done(); }
  void resume() override {}
  void reset_prefix_cache(bool) override {}
  bool is_paused() const override { return false; }
  void swap_weights(std::shared_ptr<const WeightSet>, WeightChange change,
                    std::function<void(SwapReport)> done) override {
    changes.push_back(std::move(change));
    done({});
  }
  void patch_weights(std::function<Result<void>()> patch, WeightChange change,
                     std::function<void(Result<SwapReport>)> done) override {
    changes.push_back(std::move(change));
    if (auto patched = patch(); !patched) return done(patched.error());
    done(SwapReport());
  }
  void evict_retired() override {}
  void rename_version(VersionName) override {}
  std::shared_ptr<const VersionName> version() const override { return version_; }
  EngineStats stats() const override { return {}; }

  void say(std::size_t sequence, std::uint32_t token) {
    TokenEvent event;
    event.token = token;
    event.version = version_;
    requests.at(sequence).sink->on_token(std::move(event));
  }
  void end(std::size_t sequence, FinishReason reason, std::optional<Error> error = {}) {
    FinishEvent event;
    event.reason = reason;
    event.error = std::move(error);
    requests.at(sequence).sink->on_finish(std::move(event));
  }

  std::vector<SequenceRequest> requests;
  std::vector<WeightChange> changes;
  std::size_t room = 100;
  Guarded<std::vector<SequenceId>> cancelled;

  void set_config(ModelConfig config) { config_ = std::move(config); }

 private:
  ModelConfig config_;
  EngineOptions options_;
  std::shared_ptr<const VersionName> version_ =
      std::make_shared<const VersionName>(VersionName{"x", "a", false});
};

}  // namespace weft
