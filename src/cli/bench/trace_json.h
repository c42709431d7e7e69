#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/bench/timed_task.h"

namespace mok::cli {

// The tasks as a trace in the JSON format of chrome://tracing, which Perfetto reads too: a process
// for each rank; for each SM a track of products, one of epilogues, which overlap the next task's
// products, and one of the exchange. Complete events, in microseconds from the first begin.
nlohmann::ordered_json trace_json(const std::vector<TimedTask>& tasks);

}  // namespace mok::cli
