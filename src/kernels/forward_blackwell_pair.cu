#include "kernels/blackwell_pair.cuh"
#include "kernels/forward_exchange.cuh"
#include "kernels/launch.cuh"
#include "kernels/launch.h"
#include "kernels/scheduler.cuh"
#include "kernels/teller.cuh"

// The forward pass of one rank on sm_100a and sm_103a, by pairs of CTAs. The roles are those of
// forward_blackwell.cu; the issuer of a pair's first CTA multiplies for both.
namespace mok::kernels {
namespace {

struct Launch {
    ForwardParams params;
    ExpertMaps routed, shared;
};

__global__ void __launch_bounds__(kBlackwellThreads, 1)
    forward_blackwell_pair_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    PairMemory& smem = shared_memory_in<PairMemory>(raw);
    const ForwardParams& p = launch.params;
    const arch::Cluster cluster = arch::this_cluster();
    TensorMemory& tensor = smem.blackwell.tensor;
    const int warp = threadIdx.x / 32, warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) init_pair_barriers(smem, 3);  // loader, issuer, teller
    if (warp == kIssuerWarp) arch::take_pair_tensor_memory(&tensor.address, arch::kTensorColumns);
    arch::umma_fence_before();
    arch::cluster_sync();
    arch::umma_fence_after();

    if (warpgroup == 0) {
        arch::give_registers<BlackwellForwardRegisters::kMovers>();
        if (warp == kExchangeWarp) {
            // Each loader fills its own CTA's stages alone.
            run_exchange(p, smem, LaunchedExchange(smem.blackwell.launch), arch::Cluster{0, 1});
        } else if (warp == kSchedulerWarp) {
            Scheduler(p, smem, cluster,
                      LaunchedPairTickets(p, smem, smem.blackwell.launch, cluster))
                .run();
        } else if (threadIdx.x % 32 == 0) {
            if (warp == kTellerWarp) {
                run_forward_teller(p, smem);
            } else {
                PairLoader(PairOperands(launch.routed, launch.shared, smem, cluster), smem).run();
            }
        }
    } else if (warpgroup <= kConsumers) {
        arch::take_registers<BlackwellForwardRegisters::kConsumerThreads>();
        const int consumer = warpgroup - 1;
        Consumer(p, launch.routed, launch.shared, smem,
                 TensorMemoryEngine<kPair>(smem, tensor, consumer), consumer)
            .run();
    } else {
        arch::give_registers<BlackwellForwardRegisters::kIssuer>();
        if (threadIdx.x == kIssuerWarp * 32) {
            PairIssuer(PairProducts(smem), smem).run(cluster.rank == 0);
        }
    }
    __syncwarp();
    // Nobody reads either tensor memory any more, nor the other CTA's shared memory.
    arch::cluster_sync();
    if (warp == kIssuerWarp) arch::give_pair_tensor_memory(tensor.address, arch::kTensorColumns);
}

}  // namespace

cudaError_t launch_forward_blackwell_pairs(const ForwardParams& params, const ExpertMaps& routed,
                                           const ExpertMaps& shared, int max_sms,
                                           cudaStream_t stream) {
    Launch launch{params, routed, shared};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    int grid = 0;
    const cudaError_t error = blackwell_grid(max_sms, kPair, grid);
    if (error != cudaSuccess) return error;
    return launch_in_clusters<forward_blackwell_pair_kernel>(
        launch, {grid, kPair, kBlackwellThreads, kPairBytes}, stream);
}

}  // namespace mok::kernels
