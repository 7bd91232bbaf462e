#include "weft/trainer/supervised.h"

#include <algorithm>

#include <fmt/format.h>

#include "weft/trainer/losses.h"
#include "weft/trainer/optimizer.h"
#include "weft/trainer/parts.h"

namespace weft {
namespace {

std::vector<TokenSequence> sequences_of(std::span<const Problem> problems) {
  std::vector<TokenSequence> sequences;
  for (const Problem& problem : problems) {
    sequences.push_back({Vocabulary::encode(problem.question), Vocabulary::encode(problem.answer)});
    sequences.back().answer.push_back(Vocabulary::kEnd);
  }
  return sequences;
}

// The share of held-out problems that greedy decoding solves: it does exactly where every token of
// the answer is the likeliest after the question and the tokens before it.
double greedy_by_teacher(Run& run) {
  const std::vector<TokenSequence> sequences = sequences_of(run.problems().held_out());
  const std::vector<bool> greedy = run.policy().score(sequences).greedy;
  std::size_t solved = 0;
  auto tok = greedy.begin();
  for (const TokenSequence& sequence : sequences) {
    const auto end = tok + static_cast<std::ptrdiff_t>(sequence.answer.size());
    solved += std::find(tok, end, false) == end ? 1 : 0;
    tok = end;
  }
  return static_cast<double>(solved) / static_cast<double>(sequences.size());
}

// How far fine-tuning is: the last measurement decides whether it goes on.
class Progress final : public StatePart {
 public:
  void save(RunState& state) const override { state.put("fine_tuning.greedy", greedy); }
  Result<void> restore(const RunState& state) override {
    WEFT_TRY(greedy, state.number("fine_tuning.greedy"));
    return {};
  }

  double greedy = 0;
};

// One step on new answers: the mean over all tokens of the answers, which alone count, of minus
// their log-probabilities. Returns the loss.
Result<double> fine_tune_step(Run& run, std::uint64_t step) {
  const SftSection& sft = run.config().sft;
  const auto sequences = sequences_of(run.problems().draw_demonstrations(sft.batch));
  double tokens = 0, loss = 0;
  for (const TokenSequence& sequence : sequences) {
    tokens += static_cast<double>(sequence.answer.size());
  }
  in_parts(sequences, sft.micro_batch, 1, [&](auto part) {
    const TokenScores scores =
        run.policy().forward(part, sft.packed ? run.config().model.max_position_embeddings : 0);
    Loss entropy =
        cross_entropy(scores.logprobs, std::vector<double>(scores.logprobs.size(), 1 / tokens));
    run.policy().backward({.logprobs = std::move(entropy.gradient)});
    loss += entropy.value;
  });
  const double learning_rate = learning_rate_at(sft, step, sft.max_steps);
  const double norm = run.policy().step(learning_rate);
  WEFT_TRY_VOID(run.check_finite(fmt::format("fine-tuning step {}", step), run.policy(), loss, norm,
                                 learning_rate));
  return loss;
}

}  // namespace

Result<void> blocking_fine_tune(Run& run) {
  const SftSection& sft = run.config().sft;
  run.policy().reset_optimizer(adamw_options(sft));
  Progress progress;
  WEFT_TRY(const std::optional<std::uint64_t> first, run.begin_phase(Phase::kFineTune, progress));
  if (!first) return {};
  if (*first == 1) progress.greedy = greedy_by_teacher(run);
  for (std::uint64_t step = *first; step <= sft.max_steps && progress.greedy < sft.stop_at;
       ++step) {
    WEFT_TRY_VOID(run.stop_if_asked());
    WEFT_TRY(const double loss, fine_tune_step(run, step));
    run.summary().sft_steps = step;
    if (step % sft.eval_every == 0) {
      progress.greedy = greedy_by_teacher(run);
      run.print(fmt::format("fine-tuning {:>4}  loss {:.4f}  held-out greedy {:.3f}", step, loss,
                            progress.greedy));
    }
    WEFT_TRY_VOID(run.blocking_end_step(Phase::kFineTune, step, progress));
  }
  return {};
}

}  // namespace weft
