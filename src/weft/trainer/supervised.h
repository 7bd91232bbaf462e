#pragma once
// Supervised fine-tuning (SFT): cross-entropy on given answers, of which the tokens of the answer
// count and those of the question do not, averaged over the tokens of a step. With sft.packed
// several sequences share a row of model.max_position_embeddings tokens (packing.h).

#include "weft/base/result.h"
#include "weft/trainer/run.h"

namespace weft {

// Trains until the greedy solve rate on held-out problems reaches sft.stop_at. Nothing is
// published. Blocks. Errors: kCancelled; kInternal for a loss that is not finite, naming the step.
Result<void> blocking_fine_tune(Run& run);

}  // namespace weft
