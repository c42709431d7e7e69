#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/bench/timed_task.h"

namespace mok::cli {

// What the tasks of one kind took.
struct KindSummary {
    plan::TaskKind kind{};
    int64_t tasks = 0;
    double busy_us = 0.0;      // of all tasks, from begin to end
    double epilogue_us = 0.0;  // of it after the last product
};

struct TraceSummary {
    std::vector<KindSummary> kinds;  // that occur, in the order of TaskKind
    int num_sms = 0;                 // (rank, SM) pairs with a task
    double span_us = 0.0;            // first begin to last end
    int64_t remote_bytes = 0;
    // Of the remote bytes, the share that moved while products ran on any SM, a task's bytes being
    // spread evenly over its time (an epilogue's over the epilogue). Absent without remote bytes.
    std::optional<double> hidden_share;
};
TraceSummary summary_of(const std::vector<TimedTask>& tasks);
std::string trace_table(const TraceSummary& summary);

}  // namespace mok::cli
