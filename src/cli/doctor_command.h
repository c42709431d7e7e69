#pragma once

#include <CLI/CLI.hpp>

namespace mok::cli {

// Adds the subcommand `doctor`: what this machine has, which backend a run takes, and what will not
// work and why. It throws where the CPU backend itself does not work.
void add_doctor_command(CLI::App& app);

}  // namespace mok::cli
