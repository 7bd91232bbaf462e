#pragma once
// TrainConfig: everything that makes a run what it is, read from one TOML file. What each key
// means, its unit and its range stand in one table in config_keys-inl.h, which the parser and
// `--print-config` share; what keys mean together in config_check.cc.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"

namespace weft {

// Of a key in seconds.
inline std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

struct ModelSection {
  std::uint64_t hidden_size = 128;
  std::uint64_t intermediate_size = 384;
  std::uint64_t num_layers = 4;
  std::uint64_t head_dim = 32;
  std::uint64_t max_position_embeddings = 64;  // tokens
};

struct TaskSection {
  std::string name = "sort";
  std::uint64_t digits = 5;
  std::uint64_t held_out = 512;  // problems
};

// Of AdamW and its learning rate; in [sft], [reward_model] and [rl].
struct OptimizerKeys {
  double learning_rate = 4e-4;
  std::string schedule = "linear";
  std::uint64_t warmup_steps = 5;
  double beta2 = 0.95;
  double weight_decay = 0;
  double max_grad_norm = 1.0;
};

struct SftSection : OptimizerKeys {
  std::uint64_t max_steps = 1000;
  std::uint64_t batch = 256;        // problems
  std::uint64_t micro_batch = 256;  // sequences
  bool packed = false;
  std::uint64_t eval_every = 2;  // steps
  double stop_at = 0.35;         // greedy solve rate
};

struct RewardModelSection : OptimizerKeys {
  std::uint64_t steps = 300;
  std::uint64_t batch = 128;      // pairs
  double min_margin = 0.01;       // of rewards
  double margin_scale = 0;        // of margins in the loss
  std::uint64_t held_out = 1024;  // pairs
  std::uint64_t eval_every = 50;  // steps
};

// What all algorithms that improve a policy share.
struct RlSection : OptimizerKeys {
  std::uint64_t steps = 240;
  std::uint64_t prompts = 64;     // a step
  std::uint64_t group_size = 16;  // answers a prompt
  double temperature = 1.0;
  std::uint64_t epochs = 1;
  std::uint64_t minibatches = 1;
  std::uint64_t micro_batch = 256;  // sequences
  double max_importance_weight = 2.0;
  std::uint64_t eval_every = 20;  // steps
};

struct KlSection {
  double coefficient = 0;
  std::string in = "loss";
  std::string estimator = "k3";
  double target = 0;        // nats an answer
  double horizon = 10'000;  // answers
};

struct PpoSection {
  double clip = 0.2;
  double value_clip = 0.2;
  double value_coefficient = 0.5;
  double entropy_coefficient = 0;
  double gamma = 1.0;
  double gae_lambda = 0.95;
  bool whiten_advantages = true;
};

struct GrpoSection {
  double clip_low = 0.2;
  double clip_high = 0.28;
  bool divide_by_deviation = true;
  std::string mean_over = "tokens";
  std::uint64_t dynamic_sampling_rounds = 1;
  std::uint64_t overlong_buffer = 0;  // tokens
};

struct RlooSection {
  double clip = 0.2;
};

struct DpoSection {
  double beta = 0.1;
  std::string loss = "dpo";
};

struct ServerSection {
  bool spawn = true;
  std::vector<std::string> url;
  std::uint64_t threads = 2;
  std::uint64_t max_num_seqs = 256;
  std::string deltas = "auto";
  double patience_s = 60;
  double start_timeout_s = 60;
  double request_timeout_s = 120;
};

struct FlowSection {
  bool asynchronous = false;
  std::uint64_t max_lag = 4;  // versions
  std::uint64_t threads = 0;
};

struct ScoreSection {
  std::string kind = "rule";
  std::vector<std::string> rules{"task"};
  std::string model;
  double missing_end_penalty = 0;
  std::string url;
  double timeout_s = 10;
  std::uint64_t retries = 5;
  std::uint64_t batch = 256;  // answers
  std::string on_failure = "stop";
};

struct StateSection {
  std::uint64_t save_every = 10;  // steps
};

struct CheckSection {
  double max_logprob_diff = 0.05;
  std::uint64_t rescored_sequences = 16;  // a step
  double min_discriminating_share = 0.5;
};

struct FaultSection {
  bool swap_labels = false;
  std::uint64_t stale_version = 0;
  bool no_sync = false;
  std::uint64_t hold_back_ms = 0;
};

struct TrainConfig {
  std::uint64_t seed = 0;
  std::string out = "out/demo";
  std::uint64_t threads = 2;
  std::string algorithm = "grpo";
  ModelSection model;
  TaskSection task;
  SftSection sft{
      {.learning_rate = 2e-3, .schedule = "constant", .warmup_steps = 50, .beta2 = 0.98}};
  RewardModelSection reward_model{{.learning_rate = 1e-3}};
  RlSection rl;
  KlSection kl;
  PpoSection ppo;
  GrpoSection grpo;
  RlooSection rloo;
  DpoSection dpo;
  ServerSection server;
  FlowSection flow;
  ScoreSection score;
  StateSection state;
  CheckSection check;
  FaultSection fault;
};

// Whether runs of config.algorithm look at the keys of [section].
bool uses_section(const TrainConfig& config, std::string_view section);

// `name` stands for the file in messages. Errors: kInvalidArgument naming the line and the key: no
// TOML, an unknown section or key (with the likeliest meant one), a wrong type, a value out of
// range, keys that contradict, a section that the algorithm does not use.
Result<TrainConfig> parse_train_config(std::string_view toml, std::string_view name);
// Blocks. Errors: those of blocking_read_file, too.
Result<TrainConfig> blocking_load_train_config(const std::filesystem::path& path);

// The same config as a TOML file in which every key that the algorithm uses has its meaning as a
// comment.
std::string train_config_toml(const TrainConfig& config);

}  // namespace weft
