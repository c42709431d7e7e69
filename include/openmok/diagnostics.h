#pragma once

#include <cstdint>
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
    // Faults: this rank ends in the middle of a pass without a word after so many tasks; -1: not.
    int64_t die_after_tasks = -1;
    // Faults: the n-th task of a pass is done but its arrivals are lost; -1: none.
    int64_t lose_arrivals_of = -1;
};

// Bytes of rows (x and d_y pulled, y and d_x pushed; 2H a row) that the passes of a workspace have
// moved since it was made, by peer. This rank's own entry is local and crosses no link. The 4-byte
// router weights and router gradients that go with d_y and d_x are not counted.
struct LinkBytes {
    std::vector<int64_t> pulled;  // from each home rank
    std::vector<int64_t> pushed;  // to each home rank
};

void set_diagnostics(Workspace& workspace, const Diagnostics& diagnostics);
LinkBytes link_bytes(const Workspace& workspace);

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
