#pragma once

#include <CLI/CLI.hpp>

namespace mok::cli {

// Adds the subcommand `check`: the layer against the oracle and against itself. It throws
// where a check fails.
void add_check_command(CLI::App& app);

}  // namespace mok::cli
