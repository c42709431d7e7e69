#include "kernels/backward.h"

#include "kernels/backward_consumer.cuh"
#include "kernels/backward_exchange.cuh"
#include "kernels/backward_loader.cuh"
#include "kernels/backward_scheduler.cuh"
#include "kernels/launch.cuh"

// A backward pass of one rank as one persistent kernel. Every CTA has the same roles:
//     scheduler -> (entries) -> loader -> (stages) -> consumers -> stores -> teller -> signals
//     exchange: DispatchDY and DispatchX into the ring before, CombineDX out of it behind the
//     compute tasks.
namespace mok::kernels {
namespace {

struct BackwardLaunch {
    BackwardParams params;
    BackwardMaps routed, shared;
};

__device__ void init_backward_barriers(BackwardSharedMemory& smem, const arch::Cluster& cluster) {
    for (int i = 0; i < kStages; ++i) {
        arch::barrier_init(&smem.full[i], cluster.size);  // loaders, and the bytes
        arch::barrier_init(&smem.empty[i], kConsumers);
        arch::barrier_init(&smem.peer_empty[i], kConsumers);
    }
    for (int i = 0; i < kTickets; ++i) {
        arch::barrier_init(&smem.ticket_full[i], 1);
        arch::barrier_init(&smem.ticket_empty[i], 1);
    }
    for (int i = 0; i < kEntries; ++i) {
        arch::barrier_init(&smem.entry_full[i], 1);               // the scheduler
        arch::barrier_init(&smem.entry_done[i], kConsumers * 4);  // their warps
        arch::barrier_init(&smem.entry_empty[i],
                           2 + kConsumers * 128);  // loader, teller, consumers
    }
    arch::barrier_init(&smem.batch_full, 1);
    arch::barrier_init(&smem.stages_given, cluster.size);
    arch::barrier_init_fence();
}

__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardLaunch launch) {
    extern __shared__ uint8_t raw[];
    const uintptr_t at = (reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023};
    BackwardSharedMemory& smem = *reinterpret_cast<BackwardSharedMemory*>(at);
    const BackwardParams& p = launch.params;
    const arch::Cluster cluster = arch::this_cluster();
    if (threadIdx.x == 0) init_backward_barriers(smem, cluster);
    arch::cluster_sync();

    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        arch::give_registers<kMoverRegisters>();
        if (warp == kExchangeWarp) {
            run_backward_exchange(p, smem, cluster);
        } else if (warp == kSchedulerWarp) {
            BackwardScheduler(p, smem, cluster).run();
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_teller(p, smem);
            } else {
                BackwardLoader(p, launch.routed, launch.shared, smem, cluster).run();
            }
        }
    } else {
        arch::take_registers<kConsumerRegisters>();
        BackwardConsumer(p, launch.routed, launch.shared, smem, cluster, warpgroup - 1).run();
    }
    arch::cluster_sync();  // until then the other CTA reaches this one's shared memory
}

}  // namespace

cudaError_t launch_backward(const BackwardParams& params, const BackwardMaps& routed,
                            const BackwardMaps& shared, int max_sms, cudaStream_t stream) {
    BackwardLaunch launch{params, routed, shared};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    return launch_in_pairs<backward_kernel>(launch, max_sms, kBackwardSharedBytes, stream);
}

}  // namespace mok::kernels
