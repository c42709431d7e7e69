#pragma once

#include <CLI/CLI.hpp>

namespace mok::cli {

// Adds the subcommand `run`: one layer on the tensors of a file. Where it is chosen it runs and
// throws what main.cpp turns into a sentence and an exit status.
void add_run_command(CLI::App& app);

}  // namespace mok::cli
