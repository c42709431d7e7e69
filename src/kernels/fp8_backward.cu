#include "kernels/backward_consumer.cuh"
#include "kernels/backward_exchange.cuh"
#include "kernels/fp8_backward.cuh"
#include "kernels/fp8_backward_loader.cuh"
#include "kernels/fp8_backward_scheduler.cuh"
#include "kernels/launch.cuh"

// The routed part of a backward in Fp8Block as one persistent kernel: the BF16 kernel (backward.cu)
// with units that quantise its operands between the compute tasks.
namespace mok::kernels {
namespace {

struct Launch {
    Fp8BackwardParams params;
    Fp8BackwardMaps maps;
};

__global__ void __launch_bounds__(kThreads, 1)
    fp8_backward_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ __align__(1024) uint8_t raw[];
    Fp8BackwardSharedMemory& smem = *reinterpret_cast<Fp8BackwardSharedMemory*>(raw);
    const Fp8BackwardParams& p = launch.params;
    const Fp8BackwardMaps& maps = launch.maps;
    if (threadIdx.x == 0) init_backward_barriers(smem);
    __syncthreads();

    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        arch::give_registers<Fp8Registers::kMovers>();
        if (warp == kExchangeWarp) {
            run_exchange(p, smem, ResidentTasks{}, arch::Cluster{0, 1});
        } else if (warp == kSchedulerWarp) {
            Fp8BackwardScheduler(p, smem).run();
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_fp8_teller(p, smem);
            } else {
                Fp8BackwardLoader(p, maps, smem).run();
            }
        }
    } else {
        arch::take_registers<Fp8Registers::kConsumers>();
        const int consumer = warpgroup - 1;
        BackwardConsumer(p, maps, maps, smem, Fp8WgmmaEngine(p, smem, consumer), consumer,
                         Fp8SavedRows(p, smem))
            .run();
    }
}

}  // namespace

cudaError_t launch_fp8_backward(const Fp8BackwardParams& params, const Fp8BackwardMaps& maps,
                                int max_sms, cudaStream_t stream) {
    Launch launch{params, maps};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    return launch_alone<fp8_backward_kernel>(launch, max_sms, kFp8BackwardSharedBytes, stream);
}

}  // namespace mok::kernels
