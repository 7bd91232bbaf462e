#include "weft/trainer/update.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "weft/trainer/losses.h"
#include "weft/trainer/optimizer.h"
#include "weft/trainer/parts.h"
#include "weft/trainer/run.h"

namespace weft {
namespace {

std::vector<TokenSequence> sequences_of(const Experience& experience,
                                        std::span<const std::size_t> answers) {
  std::vector<TokenSequence> sequences;
  for (const std::size_t i : answers) {
    sequences.push_back({experience.prompts[i], experience.rollouts[i].tokens});
  }
  return sequences;
}

std::vector<std::size_t> all_answers(const Experience& experience) {
  std::vector<std::size_t> all(experience.rollouts.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

bool comes_from(const Experience& experience, std::string_view version) {
  return std::ranges::all_of(experience.rollouts, [&](const Rollout& rollout) {
    return rollout.versions.size() == 1 && rollout.versions[0].label == version;
  });
}

// The answers' rows of `values`, which are of their tokens one after the other, behind `rows`.
void split(const Experience& experience, std::span<const std::size_t> answers,
           std::span<const double> values, std::vector<std::vector<double>>& rows) {
  for (const std::size_t i : answers) {
    const auto row = values.first(experience.rollouts[i].tokens.size());
    rows.emplace_back(row.begin(), row.end());
    values = values.subspan(row.size());
  }
}

// Of the policy that sampled to its reference, nats a token.
void measure_kl(const StepData& data, StepMetrics& metrics) {
  double kl = 0, tokens = 0;
  for (std::size_t i = 0; i < data.reference.size(); ++i) {
    for (std::size_t tok = 0; tok < data.length(i); ++tok) {
      kl += kl_term(KlEstimator::kK1, data.old_logprobs[i][tok], data.reference[i][tok]).value;
    }
    tokens += static_cast<double>(data.length(i));
  }
  if (tokens > 0) metrics.kl = kl / tokens;
}

// The units of a plan in another order, a function of `seed`.
void shuffle(LearningPlan& plan, std::uint64_t seed) {
  Random random(seed);
  const std::size_t together = plan.together;
  for (std::size_t units = plan.answers.size() / together; units > 1; --units) {
    const std::size_t other = random.below(units);
    for (std::size_t i = 0; i < together; ++i) {
      std::swap(plan.answers[(units - 1) * together + i], plan.answers[other * together + i]);
    }
  }
}

}  // namespace

// The policy's own scores of the step's tokens, as they come in, against the servers'.
struct PolicyUpdate::Comparison {
  std::string_view version;
  LogprobDifferences& differences;
  double entropy = 0;
  std::size_t tokens = 0;

  void add(const Experience& experience, std::span<const std::size_t> answers,
           const TokenScores& scores) {
    std::size_t first = 0;
    for (const std::size_t i : answers) {
      const Rollout& rollout = experience.rollouts[i];
      for (const VersionSpan& span : rollout.versions) {
        if (span.label != version) continue;
        differences.add(std::span(scores.logprobs).subspan(first), rollout, span);
      }
      first += rollout.tokens.size();
    }
    tokens += first;
    entropy += std::accumulate(scores.entropies.begin(), scores.entropies.end(), 0.0);
  }
};

StepData PolicyUpdate::make_data(const Experience& experience) {
  StepData data{.experience = experience};
  const auto steps = static_cast<double>(config_.rl.minibatches);
  data.answers = static_cast<double>(experience.rollouts.size()) / steps;
  for (const Rollout& rollout : experience.rollouts) {
    data.old_logprobs.emplace_back(rollout.logprobs.begin(), rollout.logprobs.end());
    data.tokens += static_cast<double>(rollout.tokens.size()) / steps;
  }
  if (!algorithm_.needs_reference()) return data;
  in_parts(all_answers(experience), config_.rl.micro_batch, 1, [&](auto answers) {
    const TokenScores scores = reference_->score(sequences_of(experience, answers));
    split(experience, answers, scores.logprobs, data.reference);
  });
  return data;
}

void PolicyUpdate::learn(const Experience& experience, std::string_view newest,
                         StepMetrics& metrics) {
  const RlSection& rl = config_.rl;
  Comparison comparison{.version = newest, .differences = metrics.logprobs};
  StepData data = make_data(experience);
  // With one gradient, from tokens of one version, its own pass gives the scores.
  const bool is_lagged = !comes_from(experience, newest);
  const bool has_importance = is_lagged && algorithm_.importance() != Importance::kNone;
  const bool scores_first =
      algorithm_.needs_values() || rl.epochs * rl.minibatches > 1 || has_importance;
  if (scores_first) score_first(data, has_importance, comparison, metrics);
  LearningPlan plan = algorithm_.prepare(data, metrics);
  if (!scores_first) score_rest(experience, plan.answers, comparison);
  measure_kl(data, metrics);
  take_steps(data, std::move(plan), scores_first ? nullptr : &comparison, metrics);
  metrics.entropy = comparison.entropy / static_cast<double>(comparison.tokens);
}

// The policy's scores of all answers before the update.
void PolicyUpdate::score_first(StepData& data, bool has_importance, Comparison& comparison,
                               StepMetrics& metrics) {
  const Experience& experience = data.experience;
  std::vector<std::vector<double>> logprobs;
  in_parts(all_answers(experience), config_.rl.micro_batch, 1, [&](auto answers) {
    const TokenScores scores = policy_.score(sequences_of(experience, answers));
    comparison.add(experience, answers, scores);
    split(experience, answers, scores.logprobs, logprobs);
    split(experience, answers, scores.values, data.values);
  });
  if (!has_importance) return;
  const double cap = config_.rl.max_importance_weight;
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    const auto& sampled = data.old_logprobs[i];
    data.importance.push_back(
        algorithm_.importance() == Importance::kToken
            ? truncated_importance_weights(logprobs[i], sampled, cap)
            : std::vector(sampled.size(), truncated_answer_importance(logprobs[i], sampled, cap)));
    metrics.tokens_truncated +=
        static_cast<std::uint64_t>(std::ranges::count(data.importance.back(), cap));
  }
  data.old_logprobs = std::move(logprobs);
}

// Answers without a gradient are scored for the comparison alone.
void PolicyUpdate::score_rest(const Experience& experience, std::span<const std::size_t> learned,
                              Comparison& comparison) {
  std::vector<bool> is_learned(experience.rollouts.size());
  for (const std::size_t i : learned) is_learned[i] = true;
  std::vector<std::size_t> rest;
  for (const std::size_t i : all_answers(experience)) {
    if (!is_learned[i]) rest.push_back(i);
  }
  in_parts(rest, config_.rl.micro_batch, 1, [&](auto answers) {
    comparison.add(experience, answers, policy_.score(sequences_of(experience, answers)));
  });
}

void PolicyUpdate::take_steps(const StepData& data, LearningPlan plan, Comparison* comparison,
                              StepMetrics& metrics) {
  const RlSection& rl = config_.rl;
  metrics.learning_rate = learning_rate_at(rl, metrics.step, rl.steps);
  const std::size_t units = plan.answers.size() / plan.together;
  std::size_t steps = 0;
  for (std::uint64_t epoch = 0; epoch < rl.epochs; ++epoch) {
    if (rl.minibatches > 1) {
      shuffle(plan, derive_seed(derive_seed(config_.seed, kShuffleSeed, metrics.step), epoch, 0));
    }
    for (std::uint64_t part = 0; part < rl.minibatches; ++part) {
      const std::size_t begin = units * part / rl.minibatches * plan.together;
      const std::size_t end = units * (part + 1) / rl.minibatches * plan.together;
      if (begin == end) continue;  // nothing to learn from
      const auto answers = std::span(plan.answers).subspan(begin, end - begin);
      // Their order within one gradient is free, and neighbours share a prompt (batch.h).
      if (plan.together == 1) std::ranges::sort(answers);
      take_step(data, answers, plan.together, comparison, metrics);
      if (!std::isfinite(metrics.grad_norm) || !std::isfinite(metrics.loss)) return;
      ++steps;
    }
  }
  const auto count = static_cast<double>(std::max<std::size_t>(1, steps));
  metrics.loss /= count;
  metrics.grad_norm /= count;
  metrics.clipped_share /= count * data.tokens;
}

// Adds to the metrics.
void PolicyUpdate::take_step(const StepData& data, std::span<const std::size_t> answers,
                             std::size_t together, Comparison* comparison, StepMetrics& metrics) {
  in_parts(answers, config_.rl.micro_batch, together, [&](auto part) {
    const TokenScores scores = policy_.forward(sequences_of(data.experience, part));
    if (comparison != nullptr) comparison->add(data.experience, part, scores);
    const AnswerLoss loss = algorithm_.loss(data, part, scores);
    policy_.backward(loss.gradient);
    metrics.loss += loss.loss;
    metrics.clipped_share += static_cast<double>(loss.clipped);
  });
  metrics.grad_norm += policy_.step(metrics.learning_rate);
}

}  // namespace weft
