#pragma once

#include <CLI/CLI.hpp>

namespace mok::cli {

// Adds the subcommand `train`: a small language model whose layer is this project's.
void add_train_command(CLI::App& app);

}  // namespace mok::cli
