#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mok::kernels {

// Copies `bytes`, a multiple of 16, between buffers aligned to 16 bytes that do not overlap, by
// ordinary loads and stores of `blocks` thread blocks of 1024 threads: what other work of a
// training step does to the multiprocessors that it gets.
cudaError_t launch_plain_copy(void* to, const void* from, int64_t bytes, int blocks,
                              cudaStream_t stream);

}  // namespace mok::kernels
