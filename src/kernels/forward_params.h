#pragma once

#include <cuda.h>

#include <cstdint>

#include "math/bf16.h"
#include "openmok/activation.h"
#include "plan/program.h"
#include "plan/signals.h"

namespace mok::kernels {

// What the tasks of one kind of expert (routed or shared) read, as tensor maps: boxes of kLoadRows
// x 64 columns, 128-byte swizzle, those of weights by fours; and the matrices that they write.
// Routed rows are ring or context rows, shared rows tokens.
inline constexpr int kLoadRows = 128;
struct ExpertMaps {
    CUtensorMap x;              // [rows, H]       dispatch -> GateUp
    CUtensorMap gate, up;       // [E_l, I, H]     weights  -> GateUp
    CUtensorMap hidden;         // [rows, I]       GateUp   -> Down
    CUtensorMap down;           // [E_l, H, I]     weights  -> Down
    Bf16* hidden_rows;          // [rows, I]       GateUp   -> Down
    Bf16 *gate_rows, *up_rows;  // [rows, I]  GateUp   -> context, where there is one
    Bf16* out_rows;             // [rows, H]  Down     -> the shared y
};

// Optional biases of the routed experts, BF16: [E_l, I], [E_l, I], [E_l, H].
struct Biases {
    bool gate, up, down;  // which are there
    const Bf16 *gate_at, *up_at, *down_at;
};

// What a wait that expired leaves in memory that the host reads (design.md section 9).
struct FaultRecord {
    uint32_t raised;  // 0: no fault
    int32_t sm;
    plan::Task task;
    plan::Wait wait;
    uint32_t have;
};

// One task as the kernel ran it, for the trace: times by the GPU's nanosecond clock.
struct TraceRecord {
    plan::Task task;
    int32_t sm;
    uint64_t begin_ns, end_ns;
    uint64_t multiplied_ns;  // compute tasks: the last product is done, the epilogue begins
};

// What tests do to a pass. Zeros: nothing.
struct Disturbance {
    uint64_t stall_seed;  // stalls of up to 200 us before one task, or claim of the
                          // exchange, in eight; 0: none
    uint32_t lost_task;   // 1 + the communication task whose arrivals are lost; 0: none
};

// Nanoseconds, summed over the CTAs: for which schedulers waited for the inputs of tasks, and for
// which they ran.
struct PassTimes {
    unsigned long long waited_ns, total_ns;
};

// A ticket of each role, and one of the CTAs that have begun (next_task.cuh).
inline constexpr int kNumTickets = plan::kNumRoles + 1;

// What the kernels of every pass share.
struct PassParams {
    plan::Pass pass;

    uint32_t* signals;     // [num_signals], zero at the start
    int32_t tile_signals;  // plan::num_tile_indices; set by the launch
    uint32_t* tickets;     // [kNumTickets], zero at the start
    uint32_t* aborted;     // zero at the start; set by the first fault
    FaultRecord* fault;    // host memory
    uint64_t timeout_ns;
    PassTimes* times;  // zero at the start
    Disturbance disturbance;

    bool traced;
    TraceRecord* trace;  // [trace_capacity]
    uint32_t* num_traced;
    uint32_t trace_capacity;
};

struct ForwardParams : PassParams {
    Activation activation;
    bool saves_context;
    Biases biases;

    const Bf16* peer_x[plan::kMaxRanks];  // [T_r, H] at every home rank
    Bf16* peer_combine[plan::kMaxRanks];  // [T_r * K, H] at every home rank
    Bf16* ring_x;                         // [B, H]  dispatch writes
};

}  // namespace mok::kernels
