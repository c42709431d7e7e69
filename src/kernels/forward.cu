#include "kernels/consumer.cuh"
#include "kernels/exchange.cuh"
#include "kernels/launch.cuh"
#include "kernels/launch.h"
#include "kernels/loader.cuh"
#include "kernels/scheduler.cuh"
#include "kernels/teller.cuh"

// The forward pass of one rank as one persistent kernel. Every CTA has the same roles:
//     scheduler -> (queue) -> loader -> (stages) -> consumers -> stores -> teller -> signals
//     exchange: DispatchX into the ring before, CombineY out of it behind the compute tasks.
namespace mok::kernels {
namespace {

struct Launch {
    ForwardParams params;
    ExpertMaps routed, shared;
};

__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    ForwardSharedMemory& smem = shared_memory_in<ForwardSharedMemory>(raw);
    const ForwardParams& p = launch.params;
    const arch::Cluster cluster = arch::this_cluster();
    if (threadIdx.x == 0) init_forward_barriers(smem, cluster, 2);
    arch::cluster_sync();

    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        arch::give_registers<kMoverRegisters>();
        if (warp == kExchangeWarp) {
            run_exchange(p, smem, ResidentTasks{}, cluster);
        } else if (warp == kSchedulerWarp) {
            Scheduler(p, smem, cluster, Tickets(p, smem, cluster)).run();
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_forward_teller(p, smem);
            } else {
                Loader(p, launch.routed, launch.shared, smem, cluster).run();
            }
        }
    } else {
        arch::take_registers<kConsumerRegisters>();
        const int consumer = warpgroup - 1;
        Consumer(p, launch.routed, launch.shared, smem, WgmmaEngine(smem, cluster, consumer),
                 consumer)
            .run();
    }
    arch::cluster_sync();  // until then the other CTA reaches this one's shared memory
}

}  // namespace

cudaError_t launch_forward_hopper(const ForwardParams& params, const ExpertMaps& routed,
                                  const ExpertMaps& shared, int max_sms, cudaStream_t stream) {
    Launch launch{params, routed, shared};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    return launch_in_pairs<forward_kernel>(launch, max_sms, kForwardSharedBytes, stream);
}

}  // namespace mok::kernels
