#include "weft/app/serve.h"

#include <cstdint>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>

#include "commands.h"
#include "weft/base/log.h"

namespace weft {
namespace {

struct Flags {
  ServeOptions options;
  std::string dtype = "auto";
  std::string allow_path;
  std::string log_level = "info";
};

constexpr unsigned kMaxThreads = 1024;
constexpr std::int64_t kMaxCacheBytes = std::int64_t{1} << 50;

const std::map<std::string, LogLevel> kLogLevels = {{"debug", LogLevel::kDebug},
                                                    {"info", LogLevel::kInfo},
                                                    {"warning", LogLevel::kWarning},
                                                    {"error", LogLevel::kError},
                                                    {"off", LogLevel::kOff}};

void add_flags(CLI::App& command, Flags& flags) {
  ServeOptions& options = flags.options;
  command.add_option("MODEL_DIR", options.model, "Hugging Face model folder")->required();
  command.add_option("--host", options.host, "address to listen on")->capture_default_str();
  command.add_option("--port", options.port, "port; 0 takes a free one")->capture_default_str();
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
  command.add_option("--served-model-name", options.served_model_name,
                     "default: the folder's name");
  command.add_option("--max-num-seqs", options.engine.max_num_seqs, "sequences in one step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("--max-num-batched-tokens", options.engine.max_num_batched_tokens,
                  "tokens in one step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option_function<std::int64_t>(
          "--kv-cache-memory",
          [&options](std::int64_t bytes) {
            options.engine.kv_cache_bytes = static_cast<std::uint64_t>(bytes);
          },
          "bytes, or as 4GiB; 0: by the memory there is")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::int64_t{0}, kMaxCacheBytes))
      ->option_text("BYTES");
  command.add_flag("--deterministic", options.engine.deterministic,
                   "results do not depend on what else runs, bit for bit; slower");
  command
      .add_option("--allow-path", flags.allow_path,
                  "folder from which {\"path\"} and {\"weight_dir\"} updates may read")
      ->check(CLI::ExistingDirectory);
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
    run = [flags] {
      set_log_level(kLogLevels.at(flags->log_level));
      flags->options.weft_version = WEFT_VERSION;
      flags->options.dtype = try_parse_torch_dtype(flags->dtype);
      if (!flags->allow_path.empty()) flags->options.allow_path = flags->allow_path;
      return blocking_serve(flags->options);
    };
  });
}

}  // namespace weft
