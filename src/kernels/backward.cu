#include "kernels/backward_consumer.cuh"
#include "kernels/backward_exchange.cuh"
#include "kernels/backward_loader.cuh"
#include "kernels/backward_scheduler.cuh"
#include "kernels/launch.cuh"
#include "kernels/launch.h"

// A backward pass of one rank as one persistent kernel. Every CTA has the same roles:
//     scheduler -> (entries) -> loader -> (stages) -> consumers -> stores -> teller -> signals
//     exchange: DispatchDY and DispatchX into the ring before the compute tasks
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
    if (threadIdx.x == 0) init_backward_barriers(smem);
    __syncthreads();

    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        arch::give_registers<Bf16Registers::kMovers>();
        if (warp == kExchangeWarp) {
            run_backward_exchange(p, smem, ResidentTasks{});
        } else if (warp == kSchedulerWarp) {
            run_backward_scheduler(p, smem, ResidentTasks{});
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_teller(p, smem);
            } else {
                BackwardLoader(p, launch.routed, launch.shared, smem).run();
            }
        }
    } else {
        arch::take_registers<Bf16Registers::kConsumers>();
        const int consumer = warpgroup - 1;
        BackwardConsumer(p, launch.routed, launch.shared, smem,
                         BackwardWgmmaEngine(smem, {0, 1}, consumer), consumer)
            .run();
    }
}

}  // namespace

cudaError_t launch_backward_hopper(const BackwardParams& params, const BackwardMaps& routed,
                                   const BackwardMaps& shared, int max_sms, cudaStream_t stream) {
    BackwardLaunch launch{params, routed, shared};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    return launch_alone<backward_kernel>(launch, max_sms, kBackwardSharedBytes, stream);
}

}  // namespace mok::kernels
