#include "kernels/fp8_forward.h"

#include "kernels/fp8_consumer.cuh"
#include "kernels/fp8_exchange.cuh"
#include "kernels/fp8_loader.cuh"
#include "kernels/scheduler.cuh"

// The routed part of a forward in Fp8Block as one persistent kernel, in the BF16 kernel's structure
// (forward.cu): tasks, signals, queue, scheduler and exchange are the same, loaders and consumers
// move and multiply FP8 with its scales.
namespace mok::kernels {
namespace {

constexpr int kLoaderWarp = 0;

struct Launch {
    Fp8ForwardParams params;
    Fp8ExpertMaps maps;
};

__device__ void init_barriers(fp8::SharedMemory& smem) {
    for (int i = 0; i < fp8::kStages; ++i) {
        arch::barrier_init(&smem.full[i], 1);                     // bytes
        arch::barrier_init(&smem.empty[i], 4 * fp8::kConsumers);  // a warp each
    }
    for (int i = 0; i < kQueue; ++i) {
        arch::barrier_init(&smem.task_full[i], 1);                           // the scheduler
        arch::barrier_init(&smem.task_empty[i], 1 + fp8::kConsumers * 128);  // loader, consumers
    }
    for (int i = 0; i < fp8::kExchangeBuffers; ++i) arch::barrier_init(&smem.row_full[i], 1);
    arch::barrier_init_fence();
}

__global__ void __launch_bounds__(kThreads, 1)
    fp8_forward_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    const uintptr_t at = (reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023};
    fp8::SharedMemory& smem = *reinterpret_cast<fp8::SharedMemory*>(at);
    const Fp8ForwardParams& p = launch.params;
    if (threadIdx.x == 0) init_barriers(smem);
    __syncthreads();

    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        arch::give_registers<fp8::kMoverRegisters>();
        if (warp == kExchangeWarp) {
            const int64_t row_bytes = plan::fp8_padded(p.pass.problem.hidden);
            run_exchange(p, smem, static_cast<int32_t>(row_bytes));
        } else if (warp == kSchedulerWarp) {
            if (threadIdx.x % 32 == 0) run_scheduler(p, smem);
        } else if (warp == kLoaderWarp) {
            if (threadIdx.x % 32 == 0) fp8::run_loader(p, launch.maps, smem);
        }
    } else {
        arch::take_registers<fp8::kConsumerRegisters>();
        fp8::Consumer(p, launch.maps, smem, warpgroup - 1).run();
    }
}

}  // namespace

cudaError_t launch_fp8_forward(const Fp8ForwardParams& params, const Fp8ExpertMaps& maps,
                               int max_sms, cudaStream_t stream) {
    Launch launch{params, maps};
    Fp8ForwardParams& p = launch.params;
    p.tile_signals = plan::num_tile_indices(p.pass.problem);
    p.gathers_own_rows = false;
    p.pushes_directly = true;
    const cudaError_t error = cudaFuncSetAttribute(
        fp8_forward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, fp8::kSharedBytes);
    if (error != cudaSuccess) return error;
    fp8_forward_kernel<<<max_sms, kThreads, fp8::kSharedBytes, stream>>>(launch);
    return cudaGetLastError();
}

}  // namespace mok::kernels
