#include "kernels/forward_roles.cuh"
#include "kernels/launch.cuh"
#include "kernels/mxfp8_exchange.cuh"
#include "kernels/mxfp8_passes.h"
#include "kernels/mxfp8_results.cuh"

// The routed part of a forward in Mxfp8 as one persistent kernel: the BF16 kernel (forward.cu) on
// BF16 numbers that Mxfp8 holds. Dispatch unpacks x, and the consumers store hidden, gate and up as
// Mxfp8 keeps them; all else is the same.
namespace mok::kernels {
namespace {

struct Launch {
    Mxfp8ForwardParams params;
    ExpertMaps maps;
};

__global__ void __launch_bounds__(kThreads, 1)
    mxfp8_forward_kernel(const __grid_constant__ Launch launch) {
    extern __shared__ uint8_t raw[];
    ForwardSharedMemory& smem = shared_memory_in<ForwardSharedMemory>(raw);
    const Mxfp8ForwardParams& p = launch.params;
    const arch::Cluster cluster = arch::this_cluster();
    run_forward_roles<Fp8Registers>(p, launch.maps, launch.maps, smem, cluster, [&](int consumer) {
        Consumer(p, launch.maps, launch.maps, smem, WgmmaEngine(smem, cluster, consumer), consumer,
                 Mxfp8Results(p))
            .run();
    });
}

}  // namespace

cudaError_t launch_mxfp8_forward(const Mxfp8ForwardParams& params, const ExpertMaps& maps,
                                 int max_sms, cudaStream_t stream) {
    Launch launch{params, maps};
    launch.params.tile_signals = plan::num_tile_indices(params.pass.problem);
    return launch_in_pairs<mxfp8_forward_kernel>(launch, max_sms, kForwardSharedBytes, stream);
}

}  // namespace mok::kernels
