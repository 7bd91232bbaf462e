#pragma once
// The flags that all commands have which talk to a server, or work on files here.

#include <functional>

#include "commands.h"
#include "weft/app/client_command.h"

namespace weft {

// --key, --key-file, --ca, --json, and with `progress` also --no-progress. When `command` was
// asked for, `run` becomes `blocking_run` after `client`, of the command's own config, is what the
// flags say; or what reports the error of that.
void add_client_flags(CLI::App& command, ClientConfig& client, bool progress, Run& run,
                      std::function<int()> blocking_run);

// --json and --no-progress, of a command that talks to nobody.
void add_local_flags(CLI::App& command, ClientConfig& client, Run& run,
                     std::function<int()> blocking_run);

}  // namespace weft
