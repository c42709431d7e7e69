#include "kernels/backward_consumer.cuh"
#include "kernels/backward_exchange.cuh"
#include "kernels/backward_loader.cuh"
#include "kernels/backward_pair_scheduler.cuh"
#include "kernels/launch.cuh"
#include "kernels/launch.h"

// A backward pass of one rank as one persistent kernel, by pairs of CTAs (pair.cuh). Every CTA has
// the same roles:
//     scheduler -> (entries) -> loader -> (stages) -> consumers -> stores -> teller -> signals
//     exchange: DispatchDY and DispatchX into the ring before the compute tasks, the router
//     gradients home (CombineDX) behind them.
namespace mok::kernels {
namespace {

struct BackwardLaunch {
    BackwardParams params;
    BackwardMaps routed, shared;
};

__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardLaunch launch) {
    extern __shared__ uint8_t raw[];
    BackwardSharedMemory& smem = shared_memory_in<BackwardSharedMemory>(raw);
    const BackwardParams& p = launch.params;
    const arch::Cluster cluster = arch::this_cluster();
    if (threadIdx.x == 0) init_backward_barriers(smem, cluster);
    arch::cluster_sync();

    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        arch::give_registers<Bf16Registers::kMovers>();
        if (warp == kExchangeWarp) {
            run_backward_exchange(p, smem, ResidentTasks{}, cluster);
        } else if (warp == kSchedulerWarp) {
            BackwardPairScheduler(p, smem, cluster, Tickets(p, smem, cluster)).run();
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_pair_teller(p, smem);
            } else {
                BackwardLoader(p, launch.routed, launch.shared, smem, cluster).run();
            }
        }
    } else {
        arch::take_registers<Bf16Registers::kConsumers>();
        const int consumer = warpgroup - 1;
        BackwardConsumer(p, launch.routed, launch.shared, smem,
                         BackwardWgmmaEngine(smem, cluster, consumer), consumer)
            .run();
    }
    __syncwarp();
    arch::cluster_sync();  // until then the other CTA reaches this one's shared memory
}

}  // namespace

cudaError_t launch_backward_hopper(const BackwardParams& params, const BackwardMaps& routed,
                                   const BackwardMaps& shared, int max_sms, cudaStream_t stream) {
    BackwardLaunch launch{params, routed, shared};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    return launch_in_pairs<backward_kernel>(launch, max_sms, kBackwardSharedBytes, stream);
}

}  // namespace mok::kernels
