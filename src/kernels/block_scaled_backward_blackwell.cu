#include "kernels/backward_consumer.cuh"
#include "kernels/backward_exchange.cuh"
#include "kernels/backward_scheduler.cuh"
#include "kernels/block_scaled_backward_engine.cuh"
#include "kernels/block_scaled_backward_loader.cuh"
#include "kernels/block_scaled_maker.cuh"
#include "kernels/mxfp8_saved_rows.cuh"
#include "kernels/prepared_devices.h"

// The routed part of a backward in Mxfp8 as one persistent kernel on sm_100a and sm_103a. Rows in
// memory, scheduler, exchange, consumers and teller are those of the BF16 kernel
// (backward_blackwell.cu); between stages and products stand the makers:
//     scheduler -> (entries) -> loader -> (rows) -> makers -> (operands) -> (tensor memory)
//     -> consumers -> stores -> teller -> signals
namespace mok::kernels {
namespace {

struct Launch {
    Mxfp8BackwardParams params;
    BlockScaledBackwardMaps maps;
};

__global__ void __launch_bounds__(kBlackwellThreads, 1)
    block_scaled_backward_blackwell_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    block_scaled::BackwardMemory& smem = shared_memory_in<block_scaled::BackwardMemory>(raw);
    const Mxfp8BackwardParams& p = launch.params;
    const BlockScaledBackwardMaps& maps = launch.maps;
    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) block_scaled::init_backward_barriers(smem);
    if (warp == kIssuerWarp) begin_tensor_memory(smem.blackwell);
    arch::umma_fence_before();
    __syncthreads();
    arch::umma_fence_after();

    if (warpgroup == 0) {
        arch::give_registers<block_scaled::kBackwardMoverRegisters>();
        if (warp == kExchangeWarp) {
            run_backward_exchange(p, smem, LaunchedExchange(smem.blackwell.launch));
        } else if (warp == kSchedulerWarp) {
            run_backward_scheduler(p, smem, LaunchedTasks(p, smem.blackwell.launch));
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_teller(p, smem);
            } else {
                block_scaled::BackwardLoader(p, maps, smem).run();
            }
        }
    } else if (warpgroup <= kConsumers) {
        arch::take_registers<block_scaled::kBackwardConsumerRegisters>();
        const int consumer = warpgroup - 1;
        BackwardConsumer(p, maps, maps, smem, block_scaled::BackwardEngine(smem, consumer),
                         consumer, Mxfp8SavedRows(p))
            .run();
    } else {
        arch::give_registers<block_scaled::kMakerRegisters>();
        block_scaled::Maker(p, smem).run();
    }
    __syncwarp();
    __syncthreads();  // nobody reads the tensor memory any more
    if (warp == kIssuerWarp) end_tensor_memory(smem.blackwell);
}

}  // namespace

cudaError_t launch_block_scaled_backward(const Mxfp8BackwardParams& params,
                                         const BlockScaledBackwardMaps& maps, int max_sms,
                                         cudaStream_t stream) {
    Launch launch{params, maps};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    int grid = 0;
    cudaError_t error = blackwell_grid(max_sms, 1, grid);
    if (error != cudaSuccess) return error;
    static SharedMemoryLimit limit;
    error = limit.set(reinterpret_cast<const void*>(block_scaled_backward_blackwell_kernel),
                      block_scaled::kBackwardBytes);
    if (error != cudaSuccess) return error;
    block_scaled_backward_blackwell_kernel<<<grid, kBlackwellThreads, block_scaled::kBackwardBytes,
                                             stream>>>(launch);
    return cudaGetLastError();
}

}  // namespace mok::kernels
