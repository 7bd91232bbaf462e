#pragma once
// Policy improvement: the loop of all algorithms whose policy learns from its own answers. Step n
// takes experience, checks it, learns from it, and publishes version n.

#include "weft/base/result.h"
#include "weft/trainer/algorithm.h"
#include "weft/trainer/experience.h"
#include "weft/trainer/run.h"

namespace weft {

// Publishes the policy as it is as version 0, measures it, and improves it. Blocks. Errors:
// kCancelled; kCorrupt when one of the run's own checks failed; kInternal for a loss that is not
// finite, naming the step; those of the servers and of files.
Result<void> blocking_improve(Run& run, ExperienceSource& source, Algorithm& algorithm);

}  // namespace weft
