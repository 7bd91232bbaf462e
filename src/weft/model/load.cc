#include "weft/model/load.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <boost/json.hpp>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include "weft/base/file.h"
#include "weft/checkpoint/checkpoint_files.h"
#include "weft/format/json.h"
#include "weft/kernels/convert.h"

namespace weft {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
constexpr std::string_view kHead = "lm_head.weight";

// ---- Do the tensors fit the model? ----

struct Problem {
  std::string tensor;
  std::string text;
};

std::vector<Problem> find_problems(const WeightLayout& layout, std::span<const TensorSpec> offered,
                                   bool tied) {
  std::vector<Problem> problems;
  std::map<std::string_view, const TensorSpec*> by_name;
  const auto embedding = layout.try_find(kEmbedding);
  for (const TensorSpec& spec : offered) {
    if (!by_name.emplace(spec.name, &spec).second) problems.push_back({spec.name, "given twice"});
    auto index = layout.try_find(spec.name);
    if (!index && tied && spec.name == kHead) index = embedding;
    if (!index) {
      problems.push_back({spec.name, "unknown to this model"});
      continue;
    }
    const Shape& expected = layout.tensors()[*index].shape;
    if (spec.shape != expected) {
      problems.push_back({spec.name, fmt::format("expected shape {}, got {}", shape_text(expected),
                                                 shape_text(spec.shape))});
    } else if (!is_float(spec.dtype)) {
      problems.push_back({spec.name, fmt::format("expected BF16, F16, F32 or F64, got {}",
                                                 dtype_name(spec.dtype))});
    }
  }
  for (const TensorSpec& expected : layout.tensors()) {
    if (!by_name.contains(expected.name)) {
      problems.push_back(
          {expected.name, fmt::format("missing, expected shape {}", shape_text(expected.shape))});
    }
  }
  return problems;
}

Error error_of(const std::vector<std::string>& lines) {
  constexpr std::size_t kMaxNames = 10;
  const std::size_t shown = std::min(lines.size(), kMaxNames);
  std::string message = fmt::format(
      "{}", fmt::join(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(shown), "; "));
  if (lines.size() > shown) message += fmt::format("; and {} more", lines.size() - shown);
  return Error(ErrorCode::kInvalidArgument, std::move(message));
}

// ---- Weights ----

// Old Llama checkpoints hold a buffer that is computed now; transformers drops it too.
bool is_dropped_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

Result<void> check_files(const CheckpointFiles& files, const ModelConfig& config,
                         const fs::path& folder) {
  std::vector<TensorSpec> offered;
  std::map<std::string_view, const CheckpointFiles::Entry*> by_name;
  for (const CheckpointFiles::Entry& entry : files.tensors()) {
    by_name.emplace(entry.spec.name, &entry);
    if (!is_dropped_buffer(entry.spec.name)) offered.push_back(entry.spec);
  }
  WEFT_TRY(const WeightLayout layout, WeightLayout::make(expected_tensors(config)));
  const auto problems = find_problems(layout, offered, config.tie_word_embeddings);
  if (problems.empty()) return {};
  std::vector<std::string> lines;
  for (const Problem& problem : problems) {
    const auto at = by_name.find(problem.tensor);
    const fs::path& path = at == by_name.end() ? folder : files.path_of(*at->second);
    lines.push_back(fmt::format("{}: {}: {}", path.string(), problem.tensor, problem.text));
  }
  return error_of(lines);
}

// The type a tensor is held in. Kernels read no FP64, so that becomes FP32.
DType held_dtype(DType stored, std::optional<DType> asked) {
  if (asked) return *asked;
  return stored == DType::kF64 ? DType::kF32 : stored;
}

// Reads a tensor as elements of `dtype`, straight into `out` where it is stored so.
Result<void> blocking_read_as(const CheckpointFiles& files, const CheckpointFiles::Entry& entry,
                              DType dtype, std::span<std::byte> out) {
  if (entry.spec.dtype == dtype) return files.blocking_read(entry, out);
  WEFT_TRY(const std::uint64_t size_bytes, tensor_size_bytes(entry.spec));
  std::vector<std::byte> stored(size_bytes);
  WEFT_TRY_VOID(files.blocking_read(entry, stored));
  kernels::convert(stored, entry.spec.dtype, out, dtype);
  return {};
}

// A tied model's redundant head must be what the embedding is, in the type that is served.
Result<void> blocking_check_tied_head(const CheckpointFiles& files,
                                      const CheckpointFiles::Entry& head,
                                      const WeightSet& weights) {
  const std::size_t index = weights.layout().try_find(kEmbedding).value();
  const std::span<const std::byte> embedding = weights.tensor(index);
  std::vector<std::byte> bytes(embedding.size());
  const DType dtype = weights.layout().tensors()[index].dtype;
  WEFT_TRY_VOID(blocking_read_as(files, head, dtype, bytes));
  if (std::ranges::equal(bytes, embedding)) return {};
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{}: {}: differs from {}, but config.json ties them",
                           files.path_of(head).string(), kHead, kEmbedding));
}

Result<void> blocking_load_weights(const fs::path& folder, std::optional<DType> dtype,
                                   Checkpoint& checkpoint) {
  WEFT_TRY(const CheckpointFiles files, CheckpointFiles::blocking_open(folder));
  WEFT_TRY_VOID(check_files(files, checkpoint.config, folder));
  std::vector<const CheckpointFiles::Entry*> entries;
  std::vector<TensorSpec> specs;
  const CheckpointFiles::Entry* tied_head = nullptr;
  for (const CheckpointFiles::Entry& entry : files.tensors()) {
    if (is_dropped_buffer(entry.spec.name)) continue;
    if (checkpoint.config.tie_word_embeddings && entry.spec.name == kHead) {
      tied_head = &entry;
      continue;
    }
    TensorSpec spec = entry.spec;
    spec.dtype = held_dtype(spec.dtype, dtype);
    checkpoint.converted |= spec.dtype != entry.spec.dtype;
    entries.push_back(&entry);
    specs.push_back(std::move(spec));
  }
  WEFT_TRY(WeightLayout layout, WeightLayout::make(std::move(specs)));
  checkpoint.layout = std::make_shared<const WeightLayout>(std::move(layout));
  WEFT_TRY(checkpoint.weights, WeightSet::blocking_allocate(checkpoint.layout));
  for (const CheckpointFiles::Entry* const entry : entries) {
    const std::size_t index = checkpoint.layout->try_find(entry->spec.name).value();
    WEFT_TRY_VOID(blocking_read_as(files, *entry, checkpoint.layout->tensors()[index].dtype,
                                   checkpoint.weights->tensor(index)));
  }
  if (tied_head == nullptr) return {};
  return blocking_check_tied_head(files, *tied_head, *checkpoint.weights);
}

// ---- The small files ----

// "" where there is no such file.
std::string_view text_of(const ModelFiles& files, const std::string& name) {
  const auto at = files.find(name);
  return at == files.end() ? std::string_view() : std::string_view(at->second);
}

// A special token is a string, or an object whose `content` is one.
std::string token_text(const json::object& config, std::string_view key) {
  const json::value* value = config.if_contains(key);
  if (value != nullptr && value->is_object()) value = value->get_object().if_contains("content");
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

// `chat_template` is a template, or a list of named ones, of which "default" counts.
std::string template_text(const json::object& config) {
  const json::value* const value = config.if_contains("chat_template");
  if (value == nullptr) return "";
  if (value->is_string()) return std::string(value->get_string());
  if (!value->is_array()) return "";
  for (const json::value& named : value->get_array()) {
    if (named.is_object() && token_text(named.get_object(), "name") == "default") {
      return token_text(named.get_object(), "template");
    }
  }
  return "";
}

Result<void> parse_text_files(const ModelFiles& files, ModelDescription& model) {
  model.tokenizer_json = text_of(files, "tokenizer.json");
  model.chat_template = text_of(files, "chat_template.jinja");
  const std::string_view text = text_of(files, "tokenizer_config.json");
  if (text.empty()) return {};
  auto root = parse_json(text);
  if (root && !root->is_object())
    root = Error(ErrorCode::kInvalidArgument, "must be a JSON object");
  if (!root) return std::move(root).error().with_context("tokenizer_config.json");
  const json::object& config = root->get_object();
  model.bos_token = token_text(config, "bos_token");
  model.eos_token = token_text(config, "eos_token");
  if (model.chat_template.empty()) model.chat_template = template_text(config);
  return {};
}

Result<void> parse_config_files(const ModelFiles& files, ModelDescription& model) {
  auto config = ModelConfig::parse(text_of(files, "config.json"));
  if (!config) return std::move(config).error().with_context("config.json");
  model.config = std::move(*config);
  const std::string_view generation = text_of(files, "generation_config.json");
  if (!generation.empty()) {
    auto end_tokens = parse_end_tokens(generation, model.config.vocab_size);
    if (!end_tokens) return std::move(end_tokens).error().with_context("generation_config.json");
    if (!end_tokens->empty()) model.config.eos_token_ids = std::move(*end_tokens);
  }
  model.eos_token_ids = model.config.eos_token_ids;
  return {};
}

Result<void> blocking_load_files(const fs::path& folder, Checkpoint& checkpoint) {
  std::error_code ignored;
  if (const fs::path adapter = folder / "adapter_config.json"; fs::exists(adapter, ignored)) {
    return Error(ErrorCode::kUnsupported,
                 adapter.string() + ": adapters (LoRA) are not supported; merge it into its model");
  }
  WEFT_TRY(checkpoint.files, blocking_read_model_files(folder));
  if (!checkpoint.files.contains("config.json")) {
    return blocking_read_file(folder / "config.json").error();  // why there is none
  }
  auto description = parse_model_files(checkpoint.files);
  if (!description) return std::move(description).error().with_context(folder.string());
  static_cast<ModelDescription&>(checkpoint) = std::move(*description);
  return {};
}

}  // namespace

Result<ModelDescription> parse_model_files(const ModelFiles& files) {
  ModelDescription model;
  WEFT_TRY_VOID(parse_config_files(files, model));
  WEFT_TRY_VOID(parse_text_files(files, model));
  return model;
}

Result<Checkpoint> blocking_load_checkpoint(const fs::path& folder, std::optional<DType> dtype) {
  Checkpoint checkpoint;
  WEFT_TRY_VOID(blocking_load_files(folder, checkpoint));
  WEFT_TRY_VOID(blocking_load_weights(folder, dtype, checkpoint));
  return checkpoint;
}

Result<ModelConfig> blocking_load_config(const fs::path& folder) {
  Checkpoint checkpoint;
  WEFT_TRY_VOID(blocking_load_files(folder, checkpoint));
  return checkpoint.config;
}

Result<void> check_tensors(const WeightLayout& layout, std::span<const TensorSpec> offered,
                           bool tied) {
  std::vector<std::string> lines;
  for (const Problem& problem : find_problems(layout, offered, tied)) {
    lines.push_back(fmt::format("{}: {}", problem.tensor, problem.text));
  }
  if (lines.empty()) return {};
  return error_of(lines);
}

}  // namespace weft
