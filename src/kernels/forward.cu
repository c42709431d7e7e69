#include "kernels/consumer.cuh"
#include "kernels/exchange.cuh"
#include "kernels/forward.h"
#include "kernels/loader.cuh"
#include "kernels/scheduler.cuh"

// The forward pass of one rank as one persistent kernel. Every CTA has the same roles:
//     scheduler -> (queue) -> loaders -> (stages) -> consumers -> stores and signals
//     exchange: DispatchX into the ring before, CombineY out of it behind the compute tasks.
namespace mok::kernels {
namespace {

struct Launch {
    ForwardParams params;
    ExpertMaps routed, shared;
};

__device__ void init_barriers(SharedMemory& smem) {
    for (int i = 0; i < kStages; ++i) {
        arch::barrier_init(&smem.full[i], 1 + kLoaderThreads);  // bytes of tiles, gathered rows
        arch::barrier_init(&smem.empty[i], kConsumers);
    }
    for (int i = 0; i < kQueue; ++i) {
        arch::barrier_init(&smem.task_full[i], 1);  // the scheduler
        arch::barrier_init(&smem.task_empty[i], kLoaderThreads + kConsumers * 128);  // all readers
    }
    for (int i = 0; i < kExchangeBuffers; ++i) arch::barrier_init(&smem.row_full[i], 1);
    arch::barrier_init_fence();
}

__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    const uintptr_t at = (reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023};
    SharedMemory& smem = *reinterpret_cast<SharedMemory*>(at);
    const ForwardParams& p = launch.params;
    if (threadIdx.x == 0) init_barriers(smem);
    __syncthreads();

    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        arch::give_registers<kMoverRegisters>();
        if (warp == kExchangeWarp) {
            run_exchange(p, smem);
        } else if (warp == kSchedulerWarp) {
            if (threadIdx.x % 32 == 0) run_scheduler(p, smem);
        } else {
            Loader(p, launch.routed, launch.shared, smem, warp == 0 ? 0 : 1).run();
        }
    } else {
        arch::take_registers<kConsumerRegisters>();
        Consumer(p, launch.routed, launch.shared, smem, warpgroup - 1).run();
    }
}

}  // namespace

cudaError_t launch_forward(const ForwardParams& params, const ExpertMaps& routed,
                           const ExpertMaps& shared, int max_sms, cudaStream_t stream) {
    Launch launch{params, routed, shared};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    const cudaError_t error = cudaFuncSetAttribute(
        forward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error != cudaSuccess) return error;
    forward_kernel<<<max_sms, kThreads, kSharedBytes, stream>>>(launch);
    return cudaGetLastError();
}

}  // namespace mok::kernels
