#include "kernels/backward_consumer.cuh"
#include "kernels/backward_exchange.cuh"
#include "kernels/backward_pair_engine.cuh"
#include "kernels/backward_pair_loader.cuh"
#include "kernels/backward_pair_scheduler.cuh"
#include "kernels/launch.cuh"
#include "kernels/launch.h"

// A backward pass of one rank on sm_100a and sm_103a, by pairs of CTAs. The roles are those of
// backward_blackwell.cu; the issuer of a pair's first CTA multiplies for both.
namespace mok::kernels {
namespace {

struct Launch {
    BackwardParams params;
    BackwardMaps routed, shared;
};

__global__ void __launch_bounds__(kBlackwellThreads, 1)
    backward_blackwell_pair_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    BackwardPairMemory& smem = shared_memory_in<BackwardPairMemory>(raw);
    const BackwardParams& p = launch.params;
    const arch::Cluster cluster = arch::this_cluster();
    TensorMemory& tensor = smem.blackwell.tensor;
    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) init_backward_pair_barriers(smem);
    if (warp == kIssuerWarp) arch::take_pair_tensor_memory(&tensor.address, arch::kTensorColumns);
    arch::umma_fence_before();
    arch::cluster_sync();
    arch::umma_fence_after();

    if (warpgroup == 0) {
        arch::give_registers<BlackwellBackwardRegisters::kMovers>();
        if (warp == kExchangeWarp) {
            // Each loader fills its own CTA's stages alone.
            run_backward_exchange(p, smem, LaunchedExchange(smem.blackwell.launch));
        } else if (warp == kSchedulerWarp) {
            BackwardPairScheduler(p, smem, cluster).run();
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_pair_teller(p, smem);
            } else {
                BackwardPairLoader(p, launch.routed, launch.shared, smem, cluster).run();
            }
        }
    } else if (warpgroup <= kConsumers) {
        arch::take_registers<BlackwellBackwardRegisters::kConsumerThreads>();
        const int consumer = warpgroup - 1;
        BackwardConsumer(p, launch.routed, launch.shared, smem,
                         BackwardPairEngine(p, smem, consumer), consumer)
            .run();
    } else {
        arch::give_registers<BlackwellBackwardRegisters::kIssuer>();
        if (threadIdx.x == kIssuerWarp * 32) BackwardPairIssuer(p, smem).run(cluster.rank == 0);
    }
    __syncwarp();
    // Nobody reads either tensor memory any more, nor the other CTA's shared memory.
    arch::cluster_sync();
    if (warp == kIssuerWarp) arch::give_pair_tensor_memory(tensor.address, arch::kTensorColumns);
}

}  // namespace

cudaError_t launch_backward_blackwell_pairs(const BackwardParams& params,
                                            const BackwardMaps& routed, const BackwardMaps& shared,
                                            int max_sms, cudaStream_t stream) {
    Launch launch{params, routed, shared};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    int grid = 0;
    const cudaError_t error = blackwell_grid(max_sms, kPair, grid);
    if (error != cudaSuccess) return error;
    return launch_in_clusters<backward_blackwell_pair_kernel>(
        launch, {grid, kPair, kBlackwellThreads, kBackwardPairBytes}, stream);
}

}  // namespace mok::kernels
