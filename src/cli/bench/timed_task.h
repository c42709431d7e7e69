#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/pass.h"

namespace mok::cli {

// One task as a GPU ran it, whatever recorded it.
struct TimedTask {
    plan::Task task;
    int rank = 0;
    int sm = 0;
    // By the GPU's nanosecond clock. Compute tasks: the last product is done at multiplied_ns, what
    // follows is the epilogue, which overlaps the next task's products; 0: not recorded.
    uint64_t begin_ns = 0, multiplied_ns = 0, end_ns = 0;
    int expert = -1;           // local expert of the task's rows, -1: the shared expert
    int64_t remote_bytes = 0;  // of rows, from or to other ranks

    bool has_epilogue() const { return multiplied_ns != 0; }
    uint64_t products_end_ns() const { return has_epilogue() ? multiplied_ns : end_ns; }
};

// expert and remote_bytes of a task, by the plan; pass.table is in host memory. On a GPU Down and
// GateUpDgrad send their columns of y and d_x home themselves.
int expert_of(const plan::Pass& pass, const plan::Task& task);
int64_t remote_bytes_of(const plan::Pass& pass, const plan::Task& task);

// The first two tasks that claim the same role of the same SM at the same time, in words: products
// of two compute tasks, epilogues of two, or two communication tasks. Absent in a sound trace.
std::optional<std::string> first_overlap(const std::vector<TimedTask>& tasks);

}  // namespace mok::cli
