#include "kernels/plain_copy.h"

namespace mok::kernels {
namespace {

constexpr int kCopyThreads = 1024;

__global__ void __launch_bounds__(kCopyThreads)
    plain_copy(int4* __restrict__ to, const int4* __restrict__ from, int64_t count) {
    const int64_t step = int64_t{gridDim.x} * kCopyThreads;
    for (int64_t i = int64_t{blockIdx.x} * kCopyThreads + threadIdx.x; i < count; i += step) {
        to[i] = from[i];
    }
}

}  // namespace

cudaError_t launch_plain_copy(void* to, const void* from, int64_t bytes, int blocks,
                              cudaStream_t stream) {
    plain_copy<<<blocks, kCopyThreads, 0, stream>>>(static_cast<int4*>(to),
                                                    static_cast<const int4*>(from), bytes / 16);
    return cudaGetLastError();
}

}  // namespace mok::kernels
