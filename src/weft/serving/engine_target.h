#pragma once
// EngineTarget: lets the weight receiver put a staged set in front of the engine. Thread-safe.

#include <functional>
#include <memory>
#include <utility>

#include "weft/base/guarded.h"
#include "weft/engine/engine.h"
#include "weft/transfer/receiver.h"

namespace weft {

class EngineTarget : public WeightTarget {
 public:
  // `engine` must outlive this, and this every commit.
  explicit EngineTarget(Engine& engine) : engine_(engine), current_(*engine.version()) {}

  void commit(std::shared_ptr<const WeightSet> weights, Takeover takeover, Done done) override {
    engine_.swap_weights(std::move(weights), takeover.version,
                         [this, takeover, done = std::move(done)](SwapReport report) {
                           current_.with([&](VersionName& current) { current = takeover.version; });
                           done(Committed{report.stall_us});
                           takeover.released();
                         });
  }
  void commit_in_place(std::function<Result<void>()>, Takeover, Done done) override {
    done(Error(ErrorCode::kUnsupported, "this engine takes no patches"));
  }
  void evict_retired() override {}
  Result<void> check_files(const ModelFiles&) override { return {}; }
  void rename(VersionName version) override {
    current_.with([&](VersionName& current) { current = version; });
    engine_.rename_version(std::move(version));
  }
  // What the last call that has returned or called back made it: the engine itself takes a new name
  // only after its step.
  VersionName current() const override {
    return current_.with([](const VersionName& current) { return current; });
  }

 private:
  Engine& engine_;
  Guarded<VersionName> current_;
};

}  // namespace weft
