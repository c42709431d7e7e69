#pragma once

#include <CLI/CLI.hpp>

namespace mok::cli {

// Adds the subcommand `train`. Where it is chosen, its exit status is stored in `status`: 0 done, 2
// a request that cannot be done, 3 a rank that failed or did not come. The sentence is on stderr.
void add_train_command(CLI::App& app, int& status);

}  // namespace mok::cli
