#pragma once

#include "arch/signal.cuh"
#include "kernels/forward_params.h"

namespace mok::kernels {

// plan::signal_index without its divisions.
__device__ inline uint32_t* signal_at(const PassParams& p, plan::SignalKind kind, int32_t index) {
    return p.signals + static_cast<int32_t>(kind) * p.tile_signals + index;
}

// Waits for a signal, at most timeout_ns. False: the wait expired or another one did; the fault is
// recorded once and every role winds down.
__device__ inline bool wait_signal(const PassParams& p, const plan::Task& task,
                                   const plan::Wait& wait) {
    const uint32_t* signal = signal_at(p, wait.kind, wait.index);
    uint64_t begin = 0;
    for (uint32_t polls = 0;; ++polls) {
        const uint32_t have = arch::signal_load(signal);
        if (have >= wait.want) return true;
        if ((polls & 63) != 63) continue;
        if (arch::signal_load(p.aborted) != 0) return false;
        const uint64_t now = arch::nanoseconds();
        if (begin == 0) begin = now;
        if (now - begin < p.timeout_ns) continue;
        if (atomicExch(p.aborted, 1u) == 0) {
            p.fault->sm = arch::sm_id();
            p.fault->task = task;
            p.fault->wait = wait;
            p.fault->have = have;
            __threadfence_system();
            p.fault->raised = 1;
        }
        return false;
    }
}

// Every wait of a task that for_each(visitor) visits, by all lanes of a warp. What they guard may
// then be read by the warp, and by the copies it issues after a fence_global_to_copies.
template <class ForEach>
__device__ inline bool wait_by_warp(const PassParams& p, const plan::Task& task,
                                    ForEach&& for_each) {
    const int32_t lane = threadIdx.x % 32;
    bool met = true;
    int32_t count = 0;
    for (int32_t first = 0; first == 0 || first < count; first += 32) {
        plan::Wait mine{};
        bool has = false;
        count = 0;
        for_each([&](const plan::Wait& wait) {
            if (count++ == first + lane) {
                mine = wait;
                has = true;
            }
        });
        if (has) met = wait_signal(p, task, mine) && met;
        __syncwarp();
    }
    return __all_sync(~0u, met);
}

__device__ inline void arrive(const PassParams& p, const plan::Arrival& a) {
    arch::signal_add(signal_at(p, a.kind, a.index), a.count);
}

// The stall of a disturbed pass before task i of a role.
__device__ inline void stall(const PassParams& p, plan::Role role, uint32_t i) {
    // Any mixing of the bits will do; this one is Fibonacci hashing.
    uint64_t random = p.disturbance.stall_seed + 2 * uint64_t{i} + static_cast<uint64_t>(role);
    random *= 0x9e3779b97f4a7c15u;
    random = (random ^ (random >> 32)) * 0x9e3779b97f4a7c15u;
    if ((random >> 61) != 0) return;
    const uint64_t end = arch::nanoseconds() + (random >> 20) % 200'000;
    while (arch::nanoseconds() < end) {
    }
}

// What a scheduler has waited, and lived since `start`.
__device__ inline void add_times(const PassParams& p, uint64_t waited_ns, uint64_t start) {
    // Sums: nothing is computed from them.
    atomicAdd(&p.times->waited_ns, static_cast<unsigned long long>(waited_ns));
    atomicAdd(&p.times->total_ns, static_cast<unsigned long long>(arch::nanoseconds() - start));
}

__device__ inline void trace_span(const PassParams& p, const plan::Task& task, uint64_t begin,
                                  uint64_t end, uint64_t multiplied = 0) {
    const uint32_t at = atomicAdd(p.num_traced, 1u);
    if (at >= p.trace_capacity) return;
    p.trace[at] = {task, arch::sm_id(), begin, end, multiplied};
}
__device__ inline void trace_task(const PassParams& p, const plan::Task& task, uint64_t begin,
                                  uint64_t multiplied = 0) {
    trace_span(p, task, begin, arch::nanoseconds(), multiplied);
}

}  // namespace mok::kernels
