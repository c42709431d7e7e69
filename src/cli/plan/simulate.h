#pragma once

#include <cstdint>
#include <vector>

#include "plan/program.h"

namespace mok::cli {

// The speeds of a simulated rank. The defaults are round numbers below the published peaks of an
// H200: dense BF16 989 TFLOP/s, NVLink 450 GB/s in a direction, HBM 4.8 TB/s (a copy reads and
// writes).
struct SimulationRates {
    double tflops = 700.0;      // of all compute workers together
    double link_gbs = 340.0;    // of all communication workers together, to and from other ranks
    double local_gbs = 2400.0;  // the same for rows whose home is this rank
    int comm_workers = 8;
};

// One task as it ran; begin is when its waits were met.
struct TaskSpan {
    plan::Task task;
    int worker;     // of its role
    int minibatch;  // in the order of work; -1: of the shared expert or a weight gradient
    bool shared;
    double begin_s, end_s;
};

struct Timeline {
    std::vector<TaskSpan> spans[plan::kNumRoles];  // in the order in which tasks began
    double end_s = 0.0;
    double busy_s[plan::kNumRoles] = {};  // of all workers of the role together
};

// Runs a pass's program on num_sms compute workers and the rates' communication workers: each
// worker claims the next task of its role, waits for the task's signals, and works for
//     compute  FLOPs of the whole tile / (tflops / num_sms)
//     comm     bytes of rows / (the rate / comm_workers).
// Throws std::logic_error where no worker can go on (a fault of the program).
Timeline simulate(const plan::Pass& pass, int num_sms, const SimulationRates& rates);

}  // namespace mok::cli
