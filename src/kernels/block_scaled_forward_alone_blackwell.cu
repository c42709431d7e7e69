#include "kernels/block_scaled_alone.cuh"
#include "kernels/block_scaled_consumer.cuh"
#include "kernels/block_scaled_forward.h"
#include "kernels/fp8_exchange.cuh"
#include "kernels/prepared_devices.h"
#include "kernels/scheduler.cuh"

// The routed part of a forward in Mxfp8 on sm_100a and sm_103a without pairs, for one
// multiprocessor: the kernel of pairs (block_scaled_forward_blackwell.cu) with a loader and an
// issuer of one CTA.
namespace mok::kernels {
namespace {

struct Launch {
    BlockScaledForwardParams params;
    BlockScaledExpertMaps maps;
};

__global__ void __launch_bounds__(kBlackwellThreads, 1)
    block_scaled_forward_alone_blackwell_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    using Memory = block_scaled::AloneMemory;
    Memory& smem = shared_memory_in<Memory>(raw);
    const BlockScaledForwardParams& p = launch.params;
    const arch::Cluster alone{0, 1};
    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) block_scaled::init_barriers(smem);
    if (warp == kIssuerWarp) begin_tensor_memory(smem.blackwell);
    arch::umma_fence_before();
    __syncthreads();
    arch::umma_fence_after();

    if (warpgroup == 0) {
        arch::give_registers<block_scaled::kMoverRegisters>();
        if (warp == kExchangeWarp) {
            run_exchange(p, smem, LaunchedExchange(smem.blackwell.launch), alone);
        } else if (warp == kSchedulerWarp) {
            Scheduler(p, smem, alone, LaunchedTickets(p, smem.blackwell.launch)).run();
        } else if (warp == kLoaderWarp && threadIdx.x % 32 == 0) {
            block_scaled::AloneLoader(launch.maps, smem).run();
        }
    } else if (warpgroup <= kConsumers) {
        arch::take_registers<block_scaled::kConsumerRegisters>();
        block_scaled::Consumer<Memory, 1>(p, launch.maps, smem, warpgroup - 1).run();
    } else {
        arch::give_registers<block_scaled::kIssuerRegisters>();
        if (threadIdx.x == kIssuerWarp * 32) block_scaled::AloneIssuer(smem).run();
    }
    __syncwarp();
    __syncthreads();  // nobody reads the tensor memory any more
    if (warp == kIssuerWarp) end_tensor_memory(smem.blackwell);
}

}  // namespace

cudaError_t launch_block_scaled_forward_alone(const BlockScaledForwardParams& params,
                                              const BlockScaledExpertMaps& maps, int max_sms,
                                              cudaStream_t stream) {
    Launch launch{params, maps};
    BlockScaledForwardParams& p = launch.params;
    p.tile_signals = plan::num_tile_indices(p.pass.problem);
    p.pushes_directly = true;
    int grid = 0;
    cudaError_t error = blackwell_grid(max_sms, 1, grid);
    if (error != cudaSuccess) return error;
    static SharedMemoryLimit limit;
    error = limit.set(reinterpret_cast<const void*>(block_scaled_forward_alone_blackwell_kernel),
                      block_scaled::kAloneBytes);
    if (error != cudaSuccess) return error;
    block_scaled_forward_alone_blackwell_kernel<<<grid, kBlackwellThreads,
                                                  block_scaled::kAloneBytes, stream>>>(launch);
    return cudaGetLastError();
}

}  // namespace mok::kernels
