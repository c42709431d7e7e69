#pragma once

#include <optional>

#include "openmok/group.h"

namespace mok::cli {

// The bound on every wait for another rank: --timeout, else MOK_TIMEOUT_S, else 600 s. Throws
// ShapeError where the variable is not a positive number or the bound exceeds 1e6 s.
GroupOptions group_options(std::optional<double> timeout_s);

}  // namespace mok::cli
