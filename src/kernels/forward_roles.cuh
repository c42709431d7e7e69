#pragma once

#include "kernels/forward_exchange.cuh"
#include "kernels/loader.cuh"
#include "kernels/scheduler.cuh"
#include "kernels/teller.cuh"

// The roles of a forward's CTA on Hopper, from its first instruction to its last:
//     scheduler -> (queue) -> loader -> (stages) -> consumers -> stores -> teller -> signals
//     exchange: DispatchX into the ring before the compute tasks.
namespace mok::kernels {

// consume(c), c = 0 or 1, is consumer c. Params: ForwardParams, or a kind of them with what
// exchange.cuh asks for.
template <class Registers, class Params, class Consume>
__device__ __forceinline__ void run_forward_roles(const Params& p, const ExpertMaps& routed,
                                                  const ExpertMaps& shared,
                                                  ForwardSharedMemory& smem,
                                                  const arch::Cluster& cluster, Consume&& consume) {
    if (threadIdx.x == 0) init_forward_barriers(smem, cluster, 2);
    arch::cluster_sync();

    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        arch::give_registers<Registers::kMovers>();
        if (warp == kExchangeWarp) {
            run_exchange(p, smem, ResidentTasks{}, cluster);
        } else if (warp == kSchedulerWarp) {
            Scheduler(p, smem, cluster, Tickets(p, smem, cluster)).run();
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_forward_teller(p, smem);
            } else {
                Loader(p, routed, shared, smem, cluster).run();
            }
        }
    } else {
        arch::take_registers<Registers::kConsumers>();
        consume(warpgroup - 1);
    }
    arch::cluster_sync();  // until then the other CTA reaches this one's shared memory
}

}  // namespace mok::kernels
