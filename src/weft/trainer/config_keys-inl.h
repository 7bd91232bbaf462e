#pragma once
// The table of all keys of a config: every key once, with its range and its meaning. The parser and
// `--print-config` walk it.

#include <limits>
#include <string_view>

#include "weft/trainer/config.h"

namespace weft {

inline constexpr double kNoLimit = std::numeric_limits<double>::max();

// What a value may be; for text and lists nothing.
struct Range {
  double least = 0;
  double most = kNoLimit;
};

// The keys that [sft], [reward_model] and [rl] share.
template <typename Keys, typename Visit>
void visit_optimizer(std::string_view section, Keys& keys, Visit&& visit) {
  visit(section, "learning_rate", keys.learning_rate, Range{0, kNoLimit}, "of AdamW");
  visit(section, "schedule", keys.schedule, Range{},
        "of the learning rate over the steps: `constant`, `linear` or `cosine`, both to about 0");
  visit(section, "warmup_steps", keys.warmup_steps, Range{0, 1e9}, "of a linear warm-up");
  visit(section, "beta2", keys.beta2, Range{0, 1}, "of AdamW; its beta1 is 0.9");
  visit(section, "weight_decay", keys.weight_decay, Range{0, kNoLimit},
        "of matrices, as a share of the learning rate");
  visit(section, "max_grad_norm", keys.max_grad_norm, Range{0, kNoLimit},
        "longer gradients are scaled down to it");
}

// Calls visit(section, key, value, range, help), section by section; section "" is the top of the
// file.
template <typename Config, typename Visit>
void visit_keys(Config& config, Visit&& visit) {
  visit("", "seed", config.seed, Range{0, 9e15}, "of everything random; same seed, same run");
  visit("", "out", config.out, Range{}, "folder for all results; made if it is not there");
  visit("", "threads", config.threads, Range{1, 1024}, "libtorch's threads");
  visit("", "algorithm", config.algorithm, Range{},
        "`sft`, `reward_model`, `ppo`, `grpo`, `rloo` or `dpo`");

  auto& model = config.model;
  visit("model", "hidden_size", model.hidden_size, Range{2, 65536}, "a multiple of head_dim");
  visit("model", "intermediate_size", model.intermediate_size, Range{1, 65536}, "of the MLP");
  visit("model", "num_layers", model.num_layers, Range{1, 256}, "transformer layers");
  visit("model", "head_dim", model.head_dim, Range{2, 1024}, "of an attention head; even");
  visit("model", "max_position_embeddings", model.max_position_embeddings, Range{8, 65536},
        "tokens; the longest question and answer must fit");

  auto& task = config.task;
  visit("task", "name", task.name, Range{}, "`sort`, `add` or `smooth`");
  visit("task", "digits", task.digits, Range{1, 9},
        "sort, smooth: digits of a question; add: digits of each number");
  visit("task", "held_out", task.held_out, Range{1, 1e6},
        "problems that are never trained on, for the solve rate");

  auto& sft = config.sft;
  visit("sft", "max_steps", sft.max_steps, Range{0, 1e9},
        "steps on given answers at most; 0 leaves the random weights");
  visit("sft", "batch", sft.batch, Range{1, 1e6}, "problems a step");
  visit("sft", "micro_batch", sft.micro_batch, Range{1, 1e6},
        "sequences in one forward and backward pass; gradients of a step add up");
  visit("sft", "packed", sft.packed, Range{},
        "several sequences share a row of model.max_position_embeddings tokens");
  visit_optimizer("sft", sft, visit);
  visit("sft", "eval_every", sft.eval_every, Range{1, 1e9}, "steps between looks at `stop_at`");
  visit("sft", "stop_at", sft.stop_at, Range{0, 1},
        "ends at this greedy held-out solve rate, to leave room for what follows");

  auto& judge = config.reward_model;
  visit("reward_model", "steps", judge.steps, Range{1, 1e9}, "each on new pairs of answers");
  visit("reward_model", "batch", judge.batch, Range{1, 1e6}, "pairs a step");
  visit("reward_model", "min_margin", judge.min_margin, Range{0, 0.05},
        "least difference between the true rewards of a pair, on which its judge decides");
  visit(
      "reward_model", "margin_scale", judge.margin_scale, Range{0, kNoLimit},
      "by how much of that difference the scores must differ, at least; 0: no margin in the loss");
  visit_optimizer("reward_model", judge, visit);
  visit("reward_model", "held_out", judge.held_out, Range{1, 1e6},
        "pairs that the accuracy is measured on, of held-out problems");
  visit("reward_model", "eval_every", judge.eval_every, Range{1, 1e9},
        "steps between measurements of the accuracy");

  auto& rl = config.rl;
  visit("rl", "steps", rl.steps, Range{1, 1e9}, "each publishes a version");
  visit("rl", "prompts", rl.prompts, Range{1, 1e6}, "questions a step, one request each");
  visit("rl", "group_size", rl.group_size, Range{1, 256}, "answers a question");
  visit("rl", "temperature", rl.temperature, Range{1, 1},
        "of sampling; 1, as losses use the model's own log-probabilities");
  visit("rl", "epochs", rl.epochs, Range{1, 1000}, "times that a step's answers are learned from");
  visit("rl", "minibatches", rl.minibatches, Range{1, 1e6},
        "optimizer steps an epoch, each on a part of the answers, shuffled");
  visit("rl", "micro_batch", rl.micro_batch, Range{1, 1e6},
        "sequences in one forward and backward pass; gradients of an optimizer step add up");
  visit_optimizer("rl", rl, visit);
  visit("rl", "max_importance_weight", rl.max_importance_weight, Range{1, kNoLimit},
        "what older versions sampled counts by its ratio of probabilities, cut here");
  visit("rl", "eval_every", rl.eval_every, Range{1, 1e9},
        "steps between measurements of the held-out solve rate through the server");

  auto& kl = config.kl;
  visit("kl", "coefficient", kl.coefficient, Range{0, kNoLimit},
        "of the KL to the policy after fine-tuning; 0: none, and no copy of that policy");
  visit("kl", "in", kl.in, Range{}, "`loss` or `reward`: where it is charged");
  visit("kl", "estimator", kl.estimator, Range{}, "`k1`, `k2` or `k3` (see kl.h)");
  visit("kl", "target", kl.target, Range{0, kNoLimit},
        "nats an answer that the coefficient is adapted to hold; 0 keeps it as it is");
  visit("kl", "horizon", kl.horizon, Range{1, kNoLimit}, "answers, of that adaptation");

  auto& ppo = config.ppo;
  visit("ppo", "clip", ppo.clip, Range{0, 1}, "ratios further than this from 1 are clipped");
  visit("ppo", "value_clip", ppo.value_clip, Range{0, kNoLimit},
        "values further than this from those before the update are clipped");
  visit("ppo", "value_coefficient", ppo.value_coefficient, Range{0, kNoLimit},
        "of the value loss beside the policy's");
  visit("ppo", "entropy_coefficient", ppo.entropy_coefficient, Range{0, kNoLimit},
        "of the bonus for entropy");
  visit("ppo", "gamma", ppo.gamma, Range{0, 1}, "discount of a reward for each token before it");
  visit("ppo", "gae_lambda", ppo.gae_lambda, Range{0, 1},
        "0 trusts the values, 1 the rewards (see advantages.h)");
  visit("ppo", "whiten_advantages", ppo.whiten_advantages, Range{},
        "to mean 0 and deviation 1 over a step's tokens");

  auto& grpo = config.grpo;
  visit("grpo", "clip_low", grpo.clip_low, Range{0, 1}, "ratios below 1 - this are clipped");
  visit("grpo", "clip_high", grpo.clip_high, Range{0, 10}, "ratios above 1 + this are clipped");
  visit("grpo", "divide_by_deviation", grpo.divide_by_deviation, Range{},
        "advantages are divided by the deviation of their group; Dr. GRPO: false");
  visit("grpo", "mean_over", grpo.mean_over, Range{},
        "what the loss is a mean over: `tokens` (DAPO), `answers`, each a mean over its tokens, or "
        "`longest`, a constant length (Dr. GRPO)");
  visit("grpo", "dynamic_sampling_rounds", grpo.dynamic_sampling_rounds, Range{1, 1000},
        "times that questions are drawn at most until rl.prompts of them have answers of differing "
        "rewards (DAPO); 1: what was drawn is what is learned from");
  visit("grpo", "overlong_buffer", grpo.overlong_buffer, Range{0, 65536},
        "tokens before the longest answer in which the reward falls to -1 (DAPO); 0: it does not");

  visit("rloo", "clip", config.rloo.clip, Range{0, 1},
        "ratios of answers further than this from 1 are clipped");

  visit("dpo", "beta", config.dpo.beta, Range{1e-9, kNoLimit},
        "how closely the policy is held to what it was after fine-tuning");
  visit("dpo", "loss", config.dpo.loss, Range{}, "`dpo` or `ipo`");

  auto& server = config.server;
  visit("server", "spawn", server.spawn, Range{},
        "start `weft serve --deterministic` beside the trainer and stop it at the end");
  visit("server", "url", server.url, Range{},
        "running servers instead, for example [\"http://127.0.0.1:8000\"]");
  visit("server", "threads", server.threads, Range{1, 1024}, "of a spawned server");
  visit("server", "max_num_seqs", server.max_num_seqs, Range{1, 65536},
        "sequences that a spawned server works on in one step; new weights wait for the step that "
        "is under way");
  visit("server", "deltas", server.deltas, Range{},
        "send what changed since the last version, which is kept in memory for it: `on`, `off`, or "
        "`auto`: to servers at a `url`; on one machine all of it is there sooner");
  visit(
      "server", "patience_s", server.patience_s, Range{0, 86400},
      "seconds to wait for a server when none answers; a spawned one that ended is not waited for");
  visit("server", "start_timeout_s", server.start_timeout_s, Range{0.1, 86400},
        "seconds until a spawned server must answer");
  visit("server", "request_timeout_s", server.request_timeout_s, Range{0.1, 86400},
        "seconds that one request may take");

  auto& flow = config.flow;
  visit("flow", "asynchronous", flow.asynchronous, Range{},
        "sample while learning; else each step samples from the version before it, and waits");
  visit("flow", "max_lag", flow.max_lag, Range{1, 64},
        "versions; asynchronous answers that are older are dropped");
  visit("flow", "threads", flow.threads, Range{0, 1024},
        "libtorch's while answers are sampled beside it; 0: as `threads`");

  auto& score = config.score;
  visit("score", "kind", score.kind, Range{},
        "`rule`, `reward_model` or `http`: what answers are worth");
  visit("score", "rules", score.rules, Range{},
        "task, exact, format, arithmetic; with a weight: \"0.2 format\". The score is their sum");
  visit("score", "model", score.model, Range{},
        "folder of a reward model, as out/reward_model/checkpoint; \"\": one is trained first");
  visit("score", "missing_end_penalty", score.missing_end_penalty, Range{0, kNoLimit},
        "what a reward model's score loses for an answer without an end, as no pair had one");
  visit("score", "url", score.url, Range{}, "of an HTTP scorer, docs/training.md has its body");
  visit("score", "timeout_s", score.timeout_s, Range{0.01, 86400}, "seconds, of one request");
  visit("score", "retries", score.retries, Range{0, 1000},
        "of one request, each after a longer wait");
  visit("score", "batch", score.batch, Range{1, 1e6}, "answers in one request");
  visit("score", "on_failure", score.on_failure, Range{},
        "`stop` or `drop`: what happens to answers without a score after all retries");

  visit("state", "save_every", config.state.save_every, Range{1, 1e9},
        "steps between saves of the state that `--resume` goes on from");

  auto& check = config.check;
  visit("check", "max_logprob_diff", check.max_logprob_diff, Range{0, kNoLimit},
        "largest difference between trainer's and server's log-probability of a token");
  visit("check", "rescored_sequences", check.rescored_sequences, Range{1, 1e9},
        "answers a step that are scored again, bit for bit, under the version they name");
  visit("check", "min_discriminating_share", check.min_discriminating_share, Range{0, 1},
        "least share of rescored tokens that the version before would have scored otherwise");

  auto& fault = config.fault;
  visit("fault", "swap_labels", fault.swap_labels, Range{},
        "for tests only: exchange the labels of versions 0 and 1; the checks must catch it");
  visit("fault", "stale_version", fault.stale_version, Range{0, 1e9},
        "for tests only: under this version's label the weights before it stay; the checks must "
        "catch it (0: none)");
  visit("fault", "no_sync", fault.no_sync, Range{},
        "for tests only: servers keep version 0; nothing is learned then");
  visit("fault", "hold_back_ms", fault.hold_back_ms, Range{0, 1e6},
        "for tests only: every batch of answers comes so much later, as from far away");
}

}  // namespace weft
