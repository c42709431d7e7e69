#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/bench/timed_task.h"

namespace mok::cli {

// Tracks of a multiprocessor: the thread id of an event is its multiprocessor * kNumTracks + track.
enum Track { kProducts, kEpilogues, kExchange, kNumTracks };
inline constexpr const char* kTrackNames[kNumTracks] = {"products", "epilogues", "exchange"};

// The tasks as a trace in the JSON format of chrome://tracing, which Perfetto reads too: a process
// for each rank; for each SM a track of products, one of epilogues, which overlap the next task's
// products, and one of the exchange. Complete events, in microseconds from the first begin.
nlohmann::ordered_json trace_json(const std::vector<TimedTask>& tasks);

}  // namespace mok::cli
