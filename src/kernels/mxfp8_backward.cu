#include "kernels/backward_consumer.cuh"
#include "kernels/backward_exchange.cuh"
#include "kernels/backward_loader.cuh"
#include "kernels/backward_scheduler.cuh"
#include "kernels/launch.cuh"
#include "kernels/mxfp8_backward.cuh"
#include "kernels/mxfp8_passes.h"

// The routed part of a backward in Mxfp8 as one persistent kernel: the BF16 kernel (backward.cu)
// with consumers that round their operands. Rows in memory are BF16 as they are there.
namespace mok::kernels {
namespace {

struct Launch {
    Mxfp8BackwardParams params;
    Mxfp8BackwardMaps maps;
};

__global__ void __launch_bounds__(kThreads, 1)
    mxfp8_backward_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    BackwardSharedMemory& smem = shared_memory_in<BackwardSharedMemory>(raw);
    const Mxfp8BackwardParams& p = launch.params;
    const Mxfp8BackwardMaps& maps = launch.maps;
    if (threadIdx.x == 0) init_backward_barriers(smem);
    __syncthreads();

    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        arch::give_registers<Fp8Registers::kMovers>();
        if (warp == kExchangeWarp) {
            run_backward_exchange(p, smem, ResidentTasks{});
        } else if (warp == kSchedulerWarp) {
            run_backward_scheduler(p, smem, ResidentTasks{});
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_teller(p, smem);
            } else {
                BackwardLoader(p, maps, maps, smem).run();
            }
        }
    } else {
        arch::take_registers<Fp8Registers::kConsumers>();
        const int consumer = warpgroup - 1;
        BackwardConsumer(p, maps, maps, smem, Mxfp8WgmmaEngine(smem, {0, 1}, consumer), consumer,
                         Mxfp8SavedRows(p))
            .run();
    }
}

}  // namespace

cudaError_t launch_mxfp8_backward(const Mxfp8BackwardParams& params, const Mxfp8BackwardMaps& maps,
                                  int max_sms, cudaStream_t stream) {
    Launch launch{params, maps};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    return launch_alone<mxfp8_backward_kernel>(launch, max_sms, kBackwardSharedBytes, stream);
}

}  // namespace mok::kernels
