#include "kernels/launch.h"

#include "kernels/block_scaled_backward.h"
#include "kernels/block_scaled_forward.h"
#include "kernels/fp8_backward.h"
#include "kernels/fp8_forward.h"
#include "kernels/mxfp8_passes.h"

// The kernels that the build has: MOK_ARCHS of cmake/cuda.cmake.
namespace mok::kernels {
namespace {

cudaError_t major_of_device(int& major) {
    int device = 0;
    const cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
}

}  // namespace

cudaError_t launch_forward(const ForwardParams& params, const ExpertMaps& routed,
                           const ExpertMaps& shared, int max_sms, cudaStream_t stream) {
    int major = 0;
    const cudaError_t error = major_of_device(major);
    if (error != cudaSuccess) return error;
#if defined(MOK_HAS_SM_90A)
    if (major == 9) return launch_forward_hopper(params, routed, shared, max_sms, stream);
#endif
#if defined(MOK_HAS_SM_100A) || defined(MOK_HAS_SM_103A)
    if (major == 10) {
        return max_sms < 2
                   ? launch_forward_blackwell(params, routed, shared, max_sms, stream)
                   : launch_forward_blackwell_pairs(params, routed, shared, max_sms, stream);
    }
#endif
    return cudaErrorNoKernelImageForDevice;
}

cudaError_t launch_backward(const BackwardParams& params, const BackwardMaps& routed,
                            const BackwardMaps& shared, int max_sms, cudaStream_t stream) {
    int major = 0;
    const cudaError_t error = major_of_device(major);
    if (error != cudaSuccess) return error;
#if defined(MOK_HAS_SM_90A)
    if (major == 9) return launch_backward_hopper(params, routed, shared, max_sms, stream);
#endif
#if defined(MOK_HAS_SM_100A) || defined(MOK_HAS_SM_103A)
    if (major == 10) {
        return max_sms < 2
                   ? launch_backward_blackwell(params, routed, shared, max_sms, stream)
                   : launch_backward_blackwell_pairs(params, routed, shared, max_sms, stream);
    }
#endif
    return cudaErrorNoKernelImageForDevice;
}

// FP8 has a kernel for Hopper alone, which refuses another GPU by itself.
#if !defined(MOK_HAS_SM_90A)
cudaError_t launch_fp8_forward(const Fp8ForwardParams&, const Fp8ExpertMaps&, int, cudaStream_t) {
    return cudaErrorNoKernelImageForDevice;
}
cudaError_t launch_fp8_backward(const Fp8BackwardParams&, const Fp8BackwardMaps&, int,
                                cudaStream_t) {
    return cudaErrorNoKernelImageForDevice;
}
cudaError_t launch_mxfp8_forward(const Mxfp8ForwardParams&, const ExpertMaps&, int, cudaStream_t) {
    return cudaErrorNoKernelImageForDevice;
}
cudaError_t launch_mxfp8_backward(const Mxfp8BackwardParams&, const Mxfp8BackwardMaps&, int,
                                  cudaStream_t) {
    return cudaErrorNoKernelImageForDevice;
}
#endif

// Block scales are Blackwell's alone, and its kernels refuse another GPU by themselves.
#if defined(MOK_HAS_SM_100A) || defined(MOK_HAS_SM_103A)
cudaError_t launch_block_scaled_forward(const BlockScaledForwardParams& params,
                                        const BlockScaledExpertMaps& maps, int max_sms,
                                        cudaStream_t stream) {
    return max_sms < 2 ? launch_block_scaled_forward_alone(params, maps, max_sms, stream)
                       : launch_block_scaled_forward_pairs(params, maps, max_sms, stream);
}
#else
cudaError_t launch_block_scaled_forward(const BlockScaledForwardParams&,
                                        const BlockScaledExpertMaps&, int, cudaStream_t) {
    return cudaErrorNoKernelImageForDevice;
}
cudaError_t launch_block_scaled_backward(const Mxfp8BackwardParams&, const BlockScaledBackwardMaps&,
                                         int, cudaStream_t) {
    return cudaErrorNoKernelImageForDevice;
}
#endif

}  // namespace mok::kernels
