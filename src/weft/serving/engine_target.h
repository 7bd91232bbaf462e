#pragma once
// EngineTarget: lets the weight receiver put a staged set in front of the engine. Thread-safe.

#include "weft/engine/engine.h"
#include "weft/transfer/receiver.h"

namespace weft {

class EngineTarget : public WeightTarget {
 public:
  // `engine` must outlive this.
  explicit EngineTarget(Engine& engine) : engine_(engine) {}

  void commit(std::shared_ptr<const WeightSet> weights, VersionName version,
              std::function<void(Committed)> done) override {
    engine_.swap_weights(std::move(weights), std::move(version),
                         [done = std::move(done)](SwapReport report) {
                           done({std::move(report.retired), report.stall_us});
                         });
  }
  void rename(VersionName version) override { engine_.rename_version(std::move(version)); }
  VersionName current() const override { return *engine_.version(); }

 private:
  Engine& engine_;
};

}  // namespace weft
