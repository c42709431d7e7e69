#pragma once

#include <vector>

#include "cli/bench/timed_layer.h"
#include "cli/bench/timed_task.h"
#include "openmok/diagnostics.h"

namespace mok::cli {

// The tasks that a rank's pass recorded on a GPU, each with its expert and remote bytes by the
// plan. A weight gradient's record does not say which expert it is of: -1. Throws Error for a kind
// that the plan does not know.
std::vector<TimedTask> timed_tasks(const BenchCase& c, int rank, BenchPass pass,
                                   const std::vector<TracedTask>& recorded);

}  // namespace mok::cli
