#include "kernels/backward_consumer.cuh"
#include "kernels/backward_exchange.cuh"
#include "kernels/backward_loader.cuh"
#include "kernels/backward_scheduler.cuh"
#include "kernels/launch.h"
#include "kernels/prepared_devices.h"

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

__device__ void init_backward_barriers(BackwardSharedMemory& smem) {
    for (int i = 0; i < kStages; ++i) {
        arch::barrier_init(&smem.full[i], 1);  // the loader, and its bytes
        arch::barrier_init(&smem.empty[i], kConsumers);
    }
    for (int i = 0; i < kEntries; ++i) {
        arch::barrier_init(&smem.entry_full[i], 1);               // the scheduler
        arch::barrier_init(&smem.entry_done[i], kConsumers * 4);  // their warps
        arch::barrier_init(&smem.entry_empty[i],
                           2 + kConsumers * 128);  // loader, teller, consumers
    }
    arch::barrier_init(&smem.batch_full, 1);
    arch::barrier_init(&smem.stages_given, 1);
    arch::barrier_init_fence();
}

__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardLaunch launch) {
    extern __shared__ uint8_t raw[];
    BackwardSharedMemory& smem = shared_memory_in<BackwardSharedMemory>(raw);
    const BackwardParams& p = launch.params;
    if (threadIdx.x == 0) init_backward_barriers(smem);
    __syncthreads();

    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        arch::give_registers<kMoverRegisters>();
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
        arch::take_registers<kConsumerRegisters>();
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
    static SharedMemoryLimit limit;
    const cudaError_t error =
        limit.set(reinterpret_cast<const void*>(backward_kernel), kBackwardSharedBytes);
    if (error != cudaSuccess) return error;
    backward_kernel<<<max_sms, kThreads, kBackwardSharedBytes, stream>>>(launch);
    return cudaGetLastError();
}

}  // namespace mok::kernels
