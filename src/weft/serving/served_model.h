#pragma once
// ServedModel: what the API has to know of the model it serves, beside its weights. A value; what
// travels with a version (tokenizer, template, end tokens) changes with it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/base/guarded.h"
#include "weft/base/result.h"
#include "weft/model/load.h"
#include "weft/text/chat_template.h"
#include "weft/text/tokenizer.h"

namespace weft {

struct ServedModel {
  std::string name;            // clients' "model"
  std::string root;            // the folder's name
  std::string weft_version;    // "0.1.0"
  std::string dtype;           // "bfloat16", as torch spells it
  std::int64_t created_s = 0;  // seconds since 1970
  std::uint64_t vocab_size = 0;
  std::uint64_t max_model_len = 0;  // tokens
  std::uint64_t max_num_seqs = 0;
  bool deterministic = false;
  std::vector<std::uint32_t> eos_token_ids;
  std::string bos_token, eos_token;  // "" where there is none; for templates
  // Null where the folder has none: ids in and out still work.
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;

  // Takes what travels with a version. Errors: kInvalidArgument naming the file.
  Result<void> take_description(const ModelDescription& description);

  // Errors: kInvalidArgument, also without a tokenizer.
  Result<std::vector<std::uint32_t>> encode(std::string_view text, bool add_special_tokens) const;
  // "" without a tokenizer, and for ids that it does not know.
  std::string decode(std::span<const std::uint32_t> ids, bool skip_special_tokens) const;
  bool is_end_token(std::uint32_t id) const;
};

// The model as the newest version has it. Who answers a request holds on to one state of it from
// the first byte to the last. Thread-safe.
class CurrentModel {
 public:
  explicit CurrentModel(ServedModel model)
      : model_(std::make_shared<const ServedModel>(std::move(model))) {}

  std::shared_ptr<const ServedModel> get() const {
    return model_.with([](const auto& model) { return model; });
  }
  void set(std::shared_ptr<const ServedModel> model) {
    model_.with([&](auto& current) { current = std::move(model); });
  }

 private:
  Guarded<std::shared_ptr<const ServedModel>> model_;
};

}  // namespace weft
