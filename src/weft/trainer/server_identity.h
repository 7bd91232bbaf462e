#pragma once
// Is this the server that was meant? A server of another model would refuse the first update, one
// with another vocabulary would take it and generate nonsense: both are refused before.

#include <string_view>

#include "weft/base/result.h"
#include "weft/http/client.h"
#include "weft/tensor/weight_set.h"

namespace weft {

// The tensors that it serves must have the names and shapes of `layout`, and it must turn the
// characters of the tasks into their ids (one without a tokenizer is taken as it is). The key that
// is sent must open what a run needs: to generate, to push, to read versions. Blocks. Errors:
// kConflict saying what differs; kUnauthenticated; the server's.
Result<void> blocking_check_server(http::Client& server, const WeightLayout& layout);

}  // namespace weft
