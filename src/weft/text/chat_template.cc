#include "weft/text/chat_template.h"

#include "weft/text/rust_text-inl.h"

namespace weft {

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::parse(std::string_view source) {
  WeftText error;
  void* state = weft_template_parse(source.data(), source.size(), &error);
  if (state == nullptr) return rust_error("chat template", error);
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(state));
}

ChatTemplate::~ChatTemplate() {
  weft_template_free(static_cast<WeftTemplate*>(state_));
}

Result<std::string> ChatTemplate::render(std::string_view context_json) const {
  WeftText text;
  WeftText error;
  if (!weft_template_render(static_cast<const WeftTemplate*>(state_), context_json.data(),
                            context_json.size(), &text, &error)) {
    return rust_error("chat template", error);
  }
  return take_text(text);
}

}  // namespace weft
