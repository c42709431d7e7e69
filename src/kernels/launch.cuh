#pragma once

#include <cuda_runtime.h>

#include "kernels/pair.cuh"
#include "kernels/prepared_devices.h"

namespace mok::kernels {

// Launches a pass's kernel on at most max_sms multiprocessors, one CTA each, in pairs where there
// are two.
template <auto kernel, class Launch>
cudaError_t launch_in_pairs(const Launch& launch, int max_sms, int shared_bytes,
                            cudaStream_t stream) {
    static SharedMemoryLimit limit;
    const cudaError_t error = limit.set(reinterpret_cast<const void*>(kernel), shared_bytes);
    if (error != cudaSuccess) return error;
    const unsigned int cluster = max_sms < static_cast<int>(kPair) ? 1 : kPair;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(max_sms / cluster * cluster);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, launch);
}

}  // namespace mok::kernels
