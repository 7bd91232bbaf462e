#include "weft/trainer/reward_model.h"

#include <algorithm>

#include <fmt/format.h>

#include "weft/base/file.h"
#include "weft/checkpoint/checkpoint_files.h"
#include "weft/trainer/losses.h"
#include "weft/trainer/optimizer.h"
#include "weft/trainer/parts.h"
#include "weft/trainer/save.h"

namespace weft {
namespace {

constexpr std::size_t kMicroBatch = 512;  // sequences that are judged together

TokenSequence sequence_of(const Problem& problem, std::string_view answer) {
  TokenSequence sequence{Vocabulary::encode(problem.question), Vocabulary::encode(answer)};
  sequence.answer.push_back(Vocabulary::kEnd);
  return sequence;
}

// All chosen answers, then all rejected ones.
std::vector<TokenSequence> sequences_of(std::span<const Preference> pairs) {
  std::vector<TokenSequence> sequences;
  for (const Preference& pair : pairs) sequences.push_back(sequence_of(pair.problem, pair.chosen));
  for (const Preference& pair : pairs)
    sequences.push_back(sequence_of(pair.problem, pair.rejected));
  return sequences;
}

std::vector<double> judge(Policy& model, std::span<const TokenSequence> sequences) {
  std::vector<double> rewards;
  in_parts(sequences, kMicroBatch, 1, [&](auto part) {
    for (const double reward : model.judge(part)) rewards.push_back(reward);
  });
  return rewards;
}

// One optimizer step. Sets the metrics of learning.
void take_step(const RewardModelSection& config, Policy& model, std::span<const Preference> pairs,
               StepMetrics& metrics) {
  const std::vector<double> rewards = model.forward_judgement(sequences_of(pairs));
  std::vector<double> margins;
  for (const Preference& pair : pairs) margins.push_back(config.margin_scale * pair.margin);
  const Loss loss = bradley_terry_loss(std::span(rewards).first(pairs.size()),
                                       std::span(rewards).subspan(pairs.size()), margins);
  model.backward_judgement(loss.gradient);
  metrics.loss = loss.value;
  metrics.learning_rate = learning_rate_at(config, metrics.step, config.steps);
  metrics.grad_norm = model.step(metrics.learning_rate);
}

// A reward model's config.json, as that of the causal model which its trunk is.
Result<ModelConfig> parse_trunk(std::string json) {
  constexpr std::string_view kClassifier = "ForSequenceClassification";
  const std::size_t at = json.find(kClassifier);
  if (at == std::string::npos) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("architectures must name a model {}", kClassifier));
  }
  return ModelConfig::parse(json.replace(at, kClassifier.size(), "ForCausalLM"));
}

// The trunk's tensors and the head.
Result<std::shared_ptr<const WeightLayout>> layout_of(const ModelConfig& model) {
  std::vector<TensorSpec> tensors = expected_tensors(model);
  tensors.push_back({std::string(kScalarHead), DType::kBF16, {1, model.hidden_size}});
  WEFT_TRY(auto layout, WeightLayout::make(std::move(tensors)));
  return std::make_shared<const WeightLayout>(std::move(layout));
}

// As transformers' LlamaForSequenceClassification reads it.
Result<void> blocking_save_reward_model(const std::filesystem::path& folder,
                                        const TrainConfig& config, const Policy& model) {
  const std::string json = reward_model_config_json(config.model);
  WEFT_TRY(const ModelConfig parsed, parse_trunk(json));
  WEFT_TRY(const auto layout, layout_of(parsed));
  WEFT_TRY(const std::shared_ptr<WeightSet> weights, WeightSet::blocking_allocate(layout));
  model.write_weights(*weights);
  return blocking_save_model(folder, json, *weights);
}

// A reward model that is being trained.
class ModelState final : public StatePart {
 public:
  explicit ModelState(Policy& model) : model_(model) {}

  void save(RunState& state) const override { state.put("reward_model.", model_.state()); }
  Result<void> restore(const RunState& state) override {
    return model_.restore(state.tensors_of("reward_model."));
  }

 private:
  Policy& model_;
};

}  // namespace

double pair_accuracy(Policy& model, std::span<const Preference> pairs) {
  const std::vector<double> rewards = judge(model, sequences_of(pairs));
  std::size_t right = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    right += rewards[i] > rewards[pairs.size() + i] ? 1 : 0;
  }
  return static_cast<double>(right) / static_cast<double>(pairs.size());
}

Result<std::unique_ptr<Policy>> blocking_train_reward_model(Run& run,
                                                            const std::filesystem::path& folder) {
  const RewardModelSection& config = run.config().reward_model;
  const std::vector<Preference> held_out =
      run.problems().held_out_preferences(config.held_out, config.min_margin);
  std::unique_ptr<Policy> model = run.policy().clone();
  model->reset_optimizer(adamw_options(config));
  ModelState state(*model);
  WEFT_TRY(const auto first, run.begin_phase(Phase::kReward, state));
  // A later phase goes on with what this one saved.
  if (!first)
    return blocking_load_reward_model(folder, static_cast<unsigned>(run.config().threads));
  for (std::uint64_t step = *first; step <= config.steps; ++step) {
    WEFT_TRY_VOID(run.stop_if_asked());
    StepMetrics metrics;
    metrics.step = step;
    take_step(config, *model, run.problems().draw_preferences(config.batch, config.min_margin),
              metrics);
    WEFT_TRY_VOID(run.check_finite(fmt::format("reward model, step {}", step), *model, metrics.loss,
                                   metrics.grad_norm, metrics.learning_rate));
    if (step % config.eval_every == 0 || step == config.steps) {
      const double accuracy = pair_accuracy(*model, held_out);
      run.summary().pair_accuracy = accuracy;
      run.print(fmt::format("reward model {:>4}/{}  loss {:.4f}  held-out pairs {:.3f}", step,
                            config.steps, metrics.loss, accuracy));
    }
    WEFT_TRY_VOID(run.blocking_end_step(Phase::kReward, step, state));
  }
  WEFT_TRY_VOID(blocking_save_reward_model(folder, run.config(), *model));
  return model;
}

Result<std::unique_ptr<Policy>> blocking_load_reward_model(const std::filesystem::path& folder,
                                                           unsigned threads) {
  WEFT_TRY(const std::string json, blocking_read_file(folder / "config.json"));
  auto parsed = parse_trunk(json);
  if (!parsed) return std::move(parsed).error().with_context((folder / "config.json").string());
  const ModelConfig config = *parsed;
  if (config.vocab_size != Vocabulary::kCharacters.size()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: the reward model has {} tokens, the tasks have {}",
                             folder.string(), config.vocab_size, Vocabulary::kCharacters.size()));
  }
  WEFT_TRY(const auto layout, layout_of(config));
  WEFT_TRY(const std::shared_ptr<WeightSet> weights, WeightSet::blocking_allocate(layout));
  WEFT_TRY(const CheckpointFiles files, CheckpointFiles::blocking_open(folder));
  for (std::size_t i = 0; i < layout->tensors().size(); ++i) {
    const TensorSpec& spec = layout->tensors()[i];
    const auto at = std::ranges::find(
        files.tensors(), spec, [](const CheckpointFiles::Entry& entry) { return entry.spec; });
    if (at == files.tensors().end()) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("{}: no tensor {} of shape {} in {}", folder.string(), spec.name,
                               shape_text(spec.shape), dtype_name(spec.dtype)));
    }
    WEFT_TRY_VOID(files.blocking_read(*at, weights->tensor(i)));
  }
  WEFT_TRY(auto model, Policy::create(config, 0, threads));
  model->read_weights(*weights);
  return model;
}

Result<std::vector<std::optional<double>>> RewardModelScorer::blocking_score(
    const Experience& experience) {
  std::vector<TokenSequence> sequences;
  for (std::size_t i = 0; i < experience.rollouts.size(); ++i) {
    sequences.push_back({experience.prompts[i], experience.rollouts[i].tokens});
  }
  const std::vector<double> rewards = judge(*model_, sequences);
  std::vector<std::optional<double>> scores;
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    scores.emplace_back(rewards[i] - (experience.rollouts[i].ended ? 0.0 : missing_end_penalty_));
  }
  return scores;
}

}  // namespace weft
