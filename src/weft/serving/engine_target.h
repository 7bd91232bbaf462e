#pragma once
// EngineTarget: lets the weight receiver put a staged set in front of the engine, together with the
// files of its version. Thread-safe.

#include <functional>
#include <memory>

#include "weft/base/guarded.h"
#include "weft/engine/engine.h"
#include "weft/serving/served_model.h"
#include "weft/serving/version_history.h"
#include "weft/transfer/receiver.h"

namespace weft {

class EngineTarget : public WeightTarget {
 public:
  // `files` are those of what is served now. `engine` and `model` must outlive this, and this every
  // commit.
  EngineTarget(Engine& engine, CurrentModel& model, ModelFiles files);

  // Takeover::files must have passed check_files() (else they are an error here).
  void commit(std::shared_ptr<const WeightSet> weights, Takeover takeover, Done done) override;
  void commit_in_place(std::function<Result<void>()> patch, Takeover takeover, Done done) override;
  void evict_retired() override { engine_.evict_retired(); }
  // Files that are not given stay what they are. Parses tokenizer and template: some 0.2 s for a
  // large one.
  Result<void> check_files(const ModelFiles& files) override;
  void rename(VersionName version) override;
  // What the last call that has returned or called back made it: the engine itself takes a new name
  // only after its step.
  VersionName current() const override {
    return current_.with([](const VersionName& current) { return current; });
  }
  // What current() was.
  const VersionHistory& history() const { return history_; }

 private:
  // Files, and what they make of the model.
  struct Described {
    ModelFiles files;
    std::shared_ptr<const ServedModel> model;
  };

  // What the engine calls when it has made the change, or could not. Errors: of the files.
  using Changed = std::function<void(const Result<SwapReport>&)>;
  Result<Changed> taking_over(const Takeover& takeover, Done done);
  Result<std::shared_ptr<const Described>> describe(const ModelFiles& files);
  // What a commit does when the engine has done its part.
  void take_over(const VersionName& version, const std::shared_ptr<const Described>& described);
  static WeightChange change_of(Takeover takeover);

  Engine& engine_;
  CurrentModel& model_;
  Guarded<VersionName> current_;
  VersionHistory history_;
  struct Descriptions {
    std::shared_ptr<const Described> served;
    std::shared_ptr<const Described> checked;  // last
  };
  Guarded<Descriptions> descriptions_;
};

}  // namespace weft
