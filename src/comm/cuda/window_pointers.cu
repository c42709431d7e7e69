#include <nccl_device.h>

#include "comm/cuda/window_pointers.h"

namespace mok::comm {
namespace {

__global__ void window_pointers(ncclWindow_t window, int num_ranks, void** pointers) {
    const int rank = static_cast<int>(threadIdx.x);
    if (rank < num_ranks) pointers[rank] = ncclGetLsaPointer(window, 0, rank);
}

}  // namespace

cudaError_t launch_window_pointers(ncclWindow_t window, int num_ranks, void** pointers,
                                   cudaStream_t stream) {
    window_pointers<<<1, num_ranks, 0, stream>>>(window, num_ranks, pointers);
    return cudaGetLastError();
}

}  // namespace mok::comm
