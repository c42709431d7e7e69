#pragma once

#include <cuda_runtime.h>

#include "kernels/pair.cuh"
#include "kernels/prepared_devices.h"

namespace mok::kernels {

struct LaunchShape {
    int grid;  // CTAs, a multiple of `cluster`
    unsigned int cluster;
    int threads, shared_bytes;
};

// Launches a pass's kernel, its parameter being `launch`.
template <auto kernel, class Launch>
cudaError_t launch_in_clusters(const Launch& launch, const LaunchShape& shape,
                               cudaStream_t stream) {
    static SharedMemoryLimit limit;
    const cudaError_t error = limit.set(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {shape.cluster, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(shape.grid);
    config.blockDim = dim3(shape.threads);
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, launch);
}

// The same without clusters, a CTA on each of max_sms multiprocessors.
template <auto kernel, class Launch>
cudaError_t launch_alone(const Launch& launch, int max_sms, int shared_bytes, cudaStream_t stream) {
    static SharedMemoryLimit limit;
    const cudaError_t error = limit.set(reinterpret_cast<const void*>(kernel), shared_bytes);
    if (error != cudaSuccess) return error;
    kernel<<<max_sms, kThreads, shared_bytes, stream>>>(launch);
    return cudaGetLastError();
}

// In clusters, on at most max_sms multiprocessors, one CTA each, in pairs where there are two.
template <auto kernel, class Launch>
cudaError_t launch_in_pairs(const Launch& launch, int max_sms, int shared_bytes,
                            cudaStream_t stream) {
    const int cluster = max_sms < static_cast<int>(kPair) ? 1 : kPair;
    const LaunchShape shape{max_sms / cluster * cluster, static_cast<unsigned int>(cluster),
                            kThreads, shared_bytes};
    return launch_in_clusters<kernel>(launch, shape, stream);
}

}  // namespace mok::kernels
