#pragma once
// The subcommands of `weft`. Each function adds one to the parser and sets `run` when it was asked
// for.

#include <functional>

namespace CLI {
class App;
}

namespace weft {

// Returns the process's exit status.
using Run = std::function<int()>;

void add_serve_command(CLI::App& app, Run& run);
void add_push_command(CLI::App& app, Run& run);
void add_store_command(CLI::App& app, Run& run);
void add_pull_command(CLI::App& app, Run& run);
void add_versions_command(CLI::App& app, Run& run);
void add_rollback_command(CLI::App& app, Run& run);
void add_inspect_command(CLI::App& app, Run& run);
void add_diff_command(CLI::App& app, Run& run);
void add_apply_command(CLI::App& app, Run& run);
#ifdef WEFT_WITH_TRAINER
void add_train_command(CLI::App& app, Run& run);
#endif

}  // namespace weft
