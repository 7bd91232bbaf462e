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

// Calls visit(section, key, value, range, help), section by section; section "" is the top of the
// file.
template <typename Config, typename Visit>
void visit_keys(Config& config, Visit&& visit) {
  visit("", "seed", config.seed, Range{0, 9e15}, "of everything random; same seed, same run");
  visit("", "out", config.out, Range{}, "folder for all results; made if it is not there");
  visit("", "threads", config.threads, Range{1, 1024}, "libtorch's threads");

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
  visit("sft", "learning_rate", sft.learning_rate, Range{0, kNoLimit}, "of AdamW (0.9, 0.98)");
  visit("sft", "warmup_steps", sft.warmup_steps, Range{0, 1e9}, "of a linear warm-up");
  visit("sft", "eval_every", sft.eval_every, Range{1, 1e9}, "steps between looks at `stop_at`");
  visit("sft", "stop_at", sft.stop_at, Range{0, 1},
        "ends at this greedy held-out solve rate, to leave room for GRPO");

  auto& grpo = config.grpo;
  visit("grpo", "steps", grpo.steps, Range{1, 1e9}, "each publishes a version");
  visit("grpo", "prompts", grpo.prompts, Range{1, 1e6}, "questions a step, one request each");
  visit("grpo", "group_size", grpo.group_size, Range{2, 256}, "answers a question");
  visit("grpo", "temperature", grpo.temperature, Range{1, 1},
        "of sampling; 1, as losses use the model's own log-probabilities");
  visit("grpo", "learning_rate", grpo.learning_rate, Range{0, kNoLimit},
        "of AdamW (0.9, 0.95), falls linearly to about 0 over the steps");
  visit("grpo", "warmup_steps", grpo.warmup_steps, Range{0, 1e9}, "of a linear warm-up");
  visit("grpo", "clip_low", grpo.clip_low, Range{0, 1}, "ratios below 1 - this are clipped");
  visit("grpo", "clip_high", grpo.clip_high, Range{0, 10}, "ratios above 1 + this are clipped");
  visit("grpo", "max_grad_norm", grpo.max_grad_norm, Range{0, kNoLimit},
        "longer gradients are scaled down to it");
  visit("grpo", "micro_batch", grpo.micro_batch, Range{1, 1e6},
        "sequences in one forward and backward pass");
  visit("grpo", "eval_every", grpo.eval_every, Range{1, 1e9},
        "steps between measurements of the held-out solve rate through the server");

  auto& server = config.server;
  visit("server", "spawn", server.spawn, Range{},
        "start `weft serve --deterministic` beside the trainer and stop it at the end");
  visit("server", "url", server.url, Range{},
        "running servers instead, for example [\"http://127.0.0.1:8000\"]");
  visit("server", "threads", server.threads, Range{1, 1024}, "of a spawned server");
  visit("server", "deltas", server.deltas, Range{},
        "send what changed since the last version, which is kept in memory for it");
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

  auto& score = config.score;
  visit("score", "kind", score.kind, Range{}, "`rule` or `http`: what answers are worth");
  visit("score", "rules", score.rules, Range{},
        "task, exact, format, arithmetic; with a weight: \"0.2 format\". The score is their sum");
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
