#pragma once

#include <cstdint>
#include <string>

#include "plan/signals.h"

namespace mok::comm {

// A wait inside a pass that expired: what design.md section 9 has a device write to pinned memory.
struct Fault {
    int32_t rank;
    int32_t worker;
    plan::Task task;  // the task that could not start
    plan::Wait wait;  // what it waited for
    uint32_t have;    // what the signal held
    double waited_s;
};

// "rank 2, worker 0: GateUp of tile 5, part 3 waited 10.0 s for x_ready[5]: 96 of 128 arrived"
std::string sentence(const Fault& fault);

}  // namespace mok::comm
