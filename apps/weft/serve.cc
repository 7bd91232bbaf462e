#include "weft/app/serve.h"

#include <map>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "commands.h"
#include "flag_kinds.h"
#include "listen_flags.h"
#include "weft/app/client_command.h"
#include "weft/base/log.h"

namespace weft {
namespace {

struct Flags {
  ServeOptions options;
  std::string dtype = "auto";
  std::string allow_path;
  std::string state_dir;
  std::string follow;
  KeyFlags keys;
  std::string log_level = "info";
};

constexpr unsigned kMaxThreads = 1024;

const std::map<std::string, LogLevel> kLogLevels = {{"debug", LogLevel::kDebug},
                                                    {"info", LogLevel::kInfo},
                                                    {"warning", LogLevel::kWarning},
                                                    {"error", LogLevel::kError},
                                                    {"off", LogLevel::kOff}};

const std::map<std::string, OnUpdate> kOnUpdate = {{"continue", OnUpdate::kContinue},
                                                   {"recompute", OnUpdate::kRecompute},
                                                   {"finish", OnUpdate::kFinish},
                                                   {"abort", OnUpdate::kAbort}};
const std::map<std::string, OnThird> kOnThird = {
    {"wait", OnThird::kWait}, {"refuse", OnThird::kRefuse}, {"recompute", OnThird::kRecompute}};
const std::map<std::string, CommitMode> kCommitModes = {{"automatic", CommitMode::kAutomatic},
                                                        {"set", CommitMode::kSet},
                                                        {"patch", CommitMode::kPatch}};
const std::map<std::string, Verify> kVerify = {{"full", Verify::kFull},
                                               {"background", Verify::kBackground}};

// How weights come.
void add_update_flags(CLI::App& command, Flags& flags) {
  ServeOptions& options = flags.options;
  ReceiverOptions& receiver = options.receiver;
  add_choice(command, "--on-update", receiver.on_update, kOnUpdate,
             "what running sequences do when the weights change");
  add_choice(command, "--on-third", receiver.on_third, kOnThird,
             "what an update does while sequences still end on the set it would overwrite");
  add_choice(command, "--commit-mode", receiver.commit_mode, kCommitModes,
             "a second set of weights, or changes written over the one there is");
  add_bytes(command, "--memory-limit", receiver.memory_limit_bytes,
            "of both sets of weights, where --commit-mode is automatic; 0: what is free");
  add_bytes(command, "--max-patch-bytes", receiver.max_patch_bytes,
            "that an update may hold where there is no second set; 0: a tenth of the weights");
  add_seconds(command, "--lease", receiver.lease,
              "seconds of silence after which an update is dropped", between(1, 86'400));
  add_choice(command, "--verify", receiver.verify, kVerify,
             "when a patched set is hashed: before the commit or after it");
  command
      .add_option("--state-dir", flags.state_dir,
                  "keeps what is committed, and serves it again after a restart")
      ->check([](const std::string& folder) { return folder.empty() ? "names no folder" : ""; })
      ->option_text("DIR");
  command
      .add_option("--allow-path", flags.allow_path,
                  "folder from which {\"path\"} and {\"weight_dir\"} updates may read")
      ->check(CLI::ExistingDirectory);
  command
      .add_option("--follow", flags.follow,
                  "keeps serving what a head of another server or a store points to")
      ->option_text("URL[#HEAD]");
  command
      .add_option("--allow-source", options.allow_sources,
                  "URL prefix of servers from which {\"source\"} updates may pull; repeatable")
      ->option_text("PREFIX");
}

void add_flags(CLI::App& command, Flags& flags) {
  ServeOptions& options = flags.options;
  command.add_option("MODEL_DIR", options.model,
                     "Hugging Face model folder; not needed with --follow");
  add_listen_flags(command, options.listen, flags.keys);
  add_api_key_flags(command, flags.keys);
  command.add_option("--threads", options.engine.threads, "compute threads; 0: one per core")
      ->check(CLI::Range(0u, kMaxThreads))
      ->capture_default_str();
  command
      .add_option("--max-model-len", options.engine.max_model_len,
                  "tokens of context; 0: the model's")
      ->capture_default_str();
  command.add_option("--dtype", flags.dtype, "weights' type; auto: as stored")
      ->check(CLI::IsMember({"auto", "bfloat16", "float16", "float32"}))
      ->capture_default_str();
  command
      .add_option("--served-model-name", options.served_model_name, "default: the folder's name")
      ->check(check_text);
  command.add_option("--max-num-seqs", options.engine.max_num_seqs, "sequences in one step")
      ->check(check_at_least_one)
      ->capture_default_str();
  command
      .add_option("--max-num-batched-tokens", options.engine.max_num_batched_tokens,
                  "tokens in one step")
      ->check(check_at_least_one)
      ->capture_default_str();
  add_bytes(command, "--kv-cache-memory", options.engine.kv_cache_bytes,
            "of keys and values; 0: by the memory there is");
  command.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching",
                   options.engine.prefix_caching,
                   "sequences that begin alike share keys and values (default: on)");
  command.add_flag("--deterministic", options.engine.deterministic,
                   "results do not depend on what else runs, bit for bit; slower");
  add_update_flags(command, flags);
  add_source_key_flags(command, flags.keys);
  add_ca_flag(command, options.source.ca_file);
  command.add_option("--log-level", flags.log_level, "least that is logged")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
}

}  // namespace

void add_serve_command(CLI::App& app, Run& run) {
  CLI::App* command =
      app.add_subcommand("serve", "generate from a model folder, and take new weights");
  auto flags = std::make_shared<Flags>();
  add_flags(*command, *flags);
  command->callback([flags, &run] {
    if (flags->options.model.empty() && flags->follow.empty())
      throw CLI::RequiredError("MODEL_DIR");
    run = [flags] {
      set_log_level(kLogLevels.at(flags->log_level));
      flags->options.weft_version = WEFT_VERSION;
      flags->options.dtype = try_parse_torch_dtype(flags->dtype);
      if (!flags->allow_path.empty()) flags->options.allow_path = flags->allow_path;
      if (!flags->state_dir.empty()) flags->options.state_dir = flags->state_dir;
      auto keys = blocking_read_keys(flags->keys);
      if (!keys) return report_error("serve", keys.error());
      flags->options.listen.http.keys = *std::move(keys);
      auto source_key = blocking_read_source_key(flags->keys);
      if (!source_key) return report_error("serve", source_key.error());
      flags->options.source.key = *std::move(source_key);
      if (!flags->follow.empty()) {
        auto follow = FollowedHead::parse(flags->follow);
        if (!follow)
          return report_error("serve", std::move(follow).error().with_context("--follow"));
        flags->options.follow = *std::move(follow);
      }
      return blocking_serve(flags->options);
    };
  });
}

}  // namespace weft
