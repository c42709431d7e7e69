#include "kernels/fp8_forward.h"

#include "kernels/fp8_consumer.cuh"
#include "kernels/fp8_exchange.cuh"
#include "kernels/fp8_loader.cuh"
#include "kernels/launch.cuh"
#include "kernels/scheduler.cuh"
#include "kernels/teller.cuh"

// The routed part of a forward in Fp8Block as one persistent kernel, in the BF16 kernel's structure
// (forward.cu): scheduler, exchange, pairs, signals and stages are the same. The loader brings FP8
// and its scales, the consumers multiply and make FP8.
namespace mok::kernels {
namespace {

struct Launch {
    Fp8ForwardParams params;
    Fp8ExpertMaps maps;
};

__global__ void __launch_bounds__(kThreads, 1)
    fp8_forward_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    fp8::SharedMemory& smem = shared_memory_in<fp8::SharedMemory>(raw);
    const Fp8ForwardParams& p = launch.params;
    const arch::Cluster cluster = arch::this_cluster();
    if (threadIdx.x == 0) init_forward_barriers(smem, cluster, 2);
    arch::cluster_sync();

    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        arch::give_registers<Fp8Registers::kMovers>();
        if (warp == kExchangeWarp) {
            run_exchange(p, smem, ResidentTasks{}, cluster);
        } else if (warp == kSchedulerWarp) {
            Scheduler(p, smem, cluster, Tickets(p, smem, cluster)).run();
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_forward_teller(p, smem);
            } else {
                fp8::Loader(fp8::Source(p, launch.maps, smem), smem, cluster).run();
            }
        }
    } else {
        arch::take_registers<Fp8Registers::kConsumers>();
        fp8::Consumer(p, smem, cluster, warpgroup - 1).run();
    }
    arch::cluster_sync();  // until then the other CTA reaches this one's shared memory
}

}  // namespace

cudaError_t launch_fp8_forward(const Fp8ForwardParams& params, const Fp8ExpertMaps& maps,
                               int max_sms, cudaStream_t stream) {
    Launch launch{params, maps};
    Fp8ForwardParams& p = launch.params;
    p.tile_signals = plan::num_tile_indices(p.pass.problem);
    return launch_in_pairs<fp8_forward_kernel>(launch, max_sms, fp8::kSharedBytes, stream);
}

}  // namespace mok::kernels
