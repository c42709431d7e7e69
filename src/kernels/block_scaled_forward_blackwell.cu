#include "kernels/block_scaled_consumer.cuh"
#include "kernels/block_scaled_forward.h"
#include "kernels/fp8_exchange.cuh"
#include "kernels/launch.cuh"
#include "kernels/scheduler.cuh"

// The routed part of a forward in Mxfp8 as one persistent kernel of pairs of CTAs, on sm_100a and
// sm_103a, in the BF16 kernel's structure (forward_blackwell_pair.cu): scheduler, exchange, pairs,
// units, signals and stages are the same. The loader brings FP8 and its scales, the issuer copies
// these to tensor memory beside its products, the consumers make FP8.
namespace mok::kernels {
namespace {

struct Launch {
    BlockScaledForwardParams params;
    BlockScaledExpertMaps maps;
};

__global__ void __launch_bounds__(kBlackwellThreads, 1)
    block_scaled_forward_blackwell_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    block_scaled::SharedMemory& smem = shared_memory_in<block_scaled::SharedMemory>(raw);
    const BlockScaledForwardParams& p = launch.params;
    const arch::Cluster cluster = arch::this_cluster();
    TensorMemory& tensor = smem.blackwell.tensor;
    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) block_scaled::init_barriers(smem);
    if (warp == kIssuerWarp) arch::take_pair_tensor_memory(&tensor.address, arch::kTensorColumns);
    arch::umma_fence_before();
    arch::cluster_sync();
    arch::umma_fence_after();

    if (warpgroup == 0) {
        arch::give_registers<block_scaled::kMoverRegisters>();
        if (warp == kExchangeWarp) {
            // Each loader fills its own CTA's stages alone.
            run_exchange(p, smem, LaunchedExchange(smem.blackwell.launch), arch::Cluster{0, 1});
        } else if (warp == kSchedulerWarp) {
            Scheduler(p, smem, cluster,
                      LaunchedPairTickets(p, smem, smem.blackwell.launch, cluster))
                .run();
        } else if (warp == kLoaderWarp && threadIdx.x % 32 == 0) {
            PairLoader(block_scaled::Operands(launch.maps, smem, cluster), smem).run();
        }
    } else if (warpgroup <= kConsumers) {
        arch::take_registers<block_scaled::kConsumerRegisters>();
        block_scaled::Consumer<block_scaled::SharedMemory, kPair>(p, launch.maps, smem,
                                                                  warpgroup - 1)
            .run();
    } else {
        arch::give_registers<block_scaled::kIssuerRegisters>();
        if (threadIdx.x == kIssuerWarp * 32) {
            PairIssuer(block_scaled::Products(smem), smem).run(cluster.rank == 0);
        }
    }
    __syncwarp();
    // Nobody reads either tensor memory any more, nor the other CTA's shared memory.
    arch::cluster_sync();
    if (warp == kIssuerWarp) arch::give_pair_tensor_memory(tensor.address, arch::kTensorColumns);
}

}  // namespace

cudaError_t launch_block_scaled_forward_pairs(const BlockScaledForwardParams& params,
                                              const BlockScaledExpertMaps& maps, int max_sms,
                                              cudaStream_t stream) {
    Launch launch{params, maps};
    BlockScaledForwardParams& p = launch.params;
    p.tile_signals = plan::num_tile_indices(p.pass.problem);
    int grid = 0;
    const cudaError_t error = blackwell_grid(max_sms, kPair, grid);
    if (error != cudaSuccess) return error;
    return launch_in_clusters<block_scaled_forward_blackwell_kernel>(
        launch, {grid, kPair, kBlackwellThreads, block_scaled::kSharedBytes}, stream);
}

}  // namespace mok::kernels
