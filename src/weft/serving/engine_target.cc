#include "weft/serving/engine_target.h"

#include <utility>

#include "weft/model/load.h"
#include "weft/model/same_maths.h"

namespace weft {

EngineTarget::EngineTarget(Engine& engine, CurrentModel& model, ModelFiles files)
    : engine_(engine), model_(model), current_(*engine.version()) {
  descriptions_.with([&](Descriptions& descriptions) {
    descriptions.served =
        std::make_shared<const Described>(Described{std::move(files), model_.get()});
  });
}

WeightChange EngineTarget::change_of(Takeover takeover) {
  return {std::move(takeover.version), takeover.on_update, std::move(takeover.released)};
}

void EngineTarget::commit(std::shared_ptr<const WeightSet> weights, Takeover takeover, Done done) {
  auto changed = taking_over(takeover, done);
  if (!changed) return done(std::move(changed).error());
  engine_.swap_weights(std::move(weights), change_of(std::move(takeover)), *std::move(changed));
}

void EngineTarget::commit_in_place(std::function<Result<void>()> patch, Takeover takeover,
                                   Done done) {
  auto changed = taking_over(takeover, done);
  if (!changed) return done(std::move(changed).error());
  engine_.patch_weights(std::move(patch), change_of(std::move(takeover)), *std::move(changed));
}

Result<EngineTarget::Changed> EngineTarget::taking_over(const Takeover& takeover, Done done) {
  std::shared_ptr<const Described> described;  // null: that of what is served
  if (takeover.files) {
    WEFT_TRY(described, describe(*takeover.files));
  }
  Changed changed = [this, version = takeover.version, is_rollback = takeover.is_rollback,
                     described = std::move(described),
                     done = std::move(done)](const Result<SwapReport>& report) {
    if (!report) return done(report.error());
    if (is_rollback) history_.go_back(version);
    take_over(version, described);
    done(Committed{report->stall_us});
  };
  return changed;
}

Result<void> EngineTarget::check_files(const ModelFiles& files) {
  WEFT_TRY(auto described, describe(files));
  descriptions_.with([&](Descriptions& descriptions) { descriptions.checked = described; });
  return {};
}

void EngineTarget::rename(VersionName version) {
  take_over(version, nullptr);
  engine_.rename_version(std::move(version));
}

Result<std::shared_ptr<const EngineTarget::Described>> EngineTarget::describe(
    const ModelFiles& files) {
  const Descriptions known =
      descriptions_.with([](const Descriptions& descriptions) { return descriptions; });
  ModelFiles merged = files;
  merged.insert(known.served->files.begin(), known.served->files.end());
  for (const auto& described : {known.served, known.checked}) {
    if (described && described->files == merged) return described;
  }
  WEFT_TRY(const ModelDescription description, parse_model_files(merged));
  WEFT_TRY_VOID(check_same_maths(engine_.config(), description.config));
  ServedModel model = *known.served->model;
  WEFT_TRY_VOID(model.take_description(description));
  return std::make_shared<const Described>(
      Described{std::move(merged), std::make_shared<const ServedModel>(std::move(model))});
}

void EngineTarget::take_over(const VersionName& version,
                             const std::shared_ptr<const Described>& described) {
  current_.with([&](VersionName& current) { current = version; });
  history_.add(version);
  if (!described) return;
  model_.set(described->model);
  descriptions_.with([&](Descriptions& descriptions) { descriptions.served = described; });
}

}  // namespace weft
