#pragma once

#include <CLI/CLI.hpp>

namespace mok::cli {

// Adds the subcommand `bench`: times of a layer's passes beside the library's own products.
void add_bench_command(CLI::App& app);

}  // namespace mok::cli
