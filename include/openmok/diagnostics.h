#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "openmok/error.h"

// What tests and `mok check` use to disturb a pass and to look into it. None of it changes a
// result.
namespace mok {

class Workspace;

struct Diagnostics {
    // CPU: run every pass's tasks in a random order among those that are ready, from this seed, on
    // one worker; 0: in the program's order, on all workers.
    uint64_t order_seed = 0;
    // Random stalls of up to 200 us before one task in eight; 0: none.
    uint64_t stall_seed = 0;
    // Faults, CPU: this rank ends in the middle of a pass without a word after so many tasks; -1:
    // not.
    int64_t die_after_tasks = -1;
    // Faults: the n-th task of a pass (CUDA: communication task) is done but its arrivals are lost;
    // -1: none.
    int64_t lose_arrivals_of = -1;
    // CUDA: count link_bytes, by a small kernel after every pass. The CPU counts anyway.
    bool counts_link_bytes = false;
    // CUDA: keep the trace of each pass's first so many tasks; 0: none.
    int64_t trace_capacity = 0;
};

// Bytes of rows (x and d_y pulled, y and d_x pushed; 2H a row, x in FP8 33/32 of H rounded up to
// 128) that the passes of a workspace have
// moved since it was made, by peer. This rank's own entry is local and crosses no link. The 4-byte
// router weights and router gradients that go with d_y and d_x are not counted.
struct LinkBytes {
    std::vector<int64_t> pulled;  // from each home rank
    std::vector<int64_t> pushed;  // to each home rank
};

// Throws ShapeError for what the workspace's backend does not have.
void set_diagnostics(Workspace& workspace, const Diagnostics& diagnostics);
LinkBytes link_bytes(const Workspace& workspace);

// A task of the last pass, as the device ran it. Times are in nanoseconds of one clock.
struct TracedTask {
    std::string kind;  // GateUp, DispatchX, ...
    int tile, part;
    int multiprocessor;
    uint64_t begin_ns, end_ns;
    uint64_t multiplied_ns;  // compute tasks: the last product is done; else 0
};
// In no particular order; empty without a trace_capacity. Synchronizes.
std::vector<TracedTask> trace(Workspace& workspace);

// Of the last pass, summed over the multiprocessors: nanoseconds for which the threads that hand
// out compute tasks waited for the tasks' inputs, and for which they lived. They run up to two
// tasks ahead, so that a wait does not always leave the tensor cores idle. CUDA only, zeros
// otherwise. Synchronizes.
struct PassTimes {
    uint64_t waited_ns = 0, total_ns = 0;
};
PassTimes pass_times(Workspace& workspace);

// Fills the workspace's memory with NaN. Nothing in it is needed while every rank of the group is
// between calls (a rank that has left a Schedule's constructor may be ahead of one that still reads
// its ids).
void poison(Workspace& workspace);

// What this rank throws when it dies by die_after_tasks.
class InjectedDeath : public Error {
  public:
    using Error::Error;
};

}  // namespace mok
