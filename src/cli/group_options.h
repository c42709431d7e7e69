#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "openmok/group.h"

namespace mok::cli {

// --timeout: the bound on every wait for another rank.
void add_timeout_option(CLI::App& command, std::optional<std::string>& timeout);

// Options with the bound that --timeout says, else MOK_TIMEOUT_S, else 600 s. Throws ShapeError
// where what it says is no bound (comm/wait_bound.h).
GroupOptions group_options(const std::optional<std::string>& timeout);

}  // namespace mok::cli
