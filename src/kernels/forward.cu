#include "kernels/consumer.cuh"
#include "kernels/forward_roles.cuh"
#include "kernels/launch.cuh"
#include "kernels/launch.h"

// The forward pass of one rank as one persistent kernel. Every CTA has the same roles, see
// forward_roles.cuh.
namespace mok::kernels {
namespace {

struct Launch {
    ForwardParams params;
    ExpertMaps routed, shared;
};

__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    ForwardSharedMemory& smem = shared_memory_in<ForwardSharedMemory>(raw);
    const ForwardParams& p = launch.params;
    const arch::Cluster cluster = arch::this_cluster();
    run_forward_roles<Bf16Registers>(p, launch.routed, launch.shared, smem, cluster,
                                     [&](int consumer) {
                                         Consumer(p, launch.routed, launch.shared, smem,
                                                  WgmmaEngine(smem, cluster, consumer), consumer)
                                             .run();
                                     });
}

}  // namespace

cudaError_t launch_forward_hopper(const ForwardParams& params, const ExpertMaps& routed,
                                  const ExpertMaps& shared, int max_sms, cudaStream_t stream) {
    Launch launch{params, routed, shared};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    return launch_in_pairs<forward_kernel>(launch, max_sms, kForwardSharedBytes, stream);
}

}  // namespace mok::kernels
