#pragma once
// The flags of every command that listens.

#include "keys.h"
#include "weft/app/server_process.h"

namespace weft {

// Keys go to `keys`: they are read when the command runs.
void add_listen_flags(CLI::App& command, ListenOptions& listen, KeyFlags& keys);

}  // namespace weft
