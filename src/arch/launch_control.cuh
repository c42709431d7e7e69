#pragma once

#include <cstdint>

#include "arch/barrier.cuh"

// Cluster launch control (sm_100a, sm_103a): a running CTA takes over one that the grid has not
// launched yet. Written out here because cuda::ptx of CUDA 13.0 refuses sm_103a.
namespace mok::arch {

// What the hardware answers.
struct alignas(16) CancelResponse {
    uint64_t low, high;
};

// Asks for a CTA; the answer comes to shared memory, 16 bytes counted at `full`. Not to be called
// again once an answer was no.
__device__ inline void ask_to_cancel(CancelResponse* response, Barrier* full) {
    barrier_arrive_expect(full, sizeof(CancelResponse));
    asm volatile(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], "
        "[%1];" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(response))),
        "r"(static_cast<uint32_t>(__cvta_generic_to_shared(full)))
        : "memory");
}

// Whether the answer, which has come, is yes: that CTA is never launched, its work is the caller's.
// Orders the reading before the next answer.
__device__ inline bool was_cancelled(const CancelResponse* response) {
    uint32_t yes;
    asm volatile(
        "{\n.reg .b128 response;\n.reg .b64 low, high;\n.reg .pred p;\n"
        "ld.shared.v2.b64 {low, high}, [%1];\n"
        "mov.b128 response, {low, high};\n"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, response;\n"
        "selp.b32 %0, 1, 0, p;\n}"
        : "=r"(yes)
        : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(response)))
        : "memory");
    ptx::fence_proxy_async(ptx::space_shared);
    return yes != 0;
}

}  // namespace mok::arch
