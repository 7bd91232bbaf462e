#pragma once
// ChatTemplate: a model's Jinja chat template, rendered by minijinja. Thread-safe (immutable).

#include <memory>
#include <string>
#include <string_view>

#include "weft/base/result.h"

namespace weft {

class ChatTemplate {
 public:
  // Errors: kInvalidArgument with the line and reason.
  static Result<std::unique_ptr<ChatTemplate>> parse(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // Renders with the members of the JSON object `context_json` as variables: `messages`, `tools`,
  // `add_generation_prompt`, `bos_token`, whatever the template reads.
  // Errors: kInvalidArgument with the template's own words when it raises.
  Result<std::string> render(std::string_view context_json) const;

 private:
  explicit ChatTemplate(void* state) : state_(state) {}
  void* state_;  // owned; the Rust library's environment
};

}  // namespace weft
