#pragma once

#include <CLI/CLI.hpp>

namespace mok::cli {

// Adds the subcommand `plan`: what a layer's passes will do, without running them.
void add_plan_command(CLI::App& app);

}  // namespace mok::cli
