#include "weft/trainer/experience.h"

namespace weft {

std::string answer_text(const Rollout& rollout) {
  const std::size_t length = rollout.tokens.size() - (rollout.ended ? 1 : 0);
  return Vocabulary::decode(std::span(rollout.tokens).first(length));
}

}  // namespace weft
