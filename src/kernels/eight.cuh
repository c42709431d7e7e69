#pragma once

#include <cuda_bf16.h>

#include "arch/copy.cuh"
#include "math/bf16.h"

namespace mok::kernels {

// Eight neighbours of a row in BF16, at a multiple of 16 bytes.
struct alignas(16) Eight {
    __nv_bfloat162 v[4];
};
// The eight from column 8 * i on of a matrix whose rows have a multiple of eight, seen as one row.
// Read once: what a pass has left in the L2 cache is not driven out by the rest of the rows.
__device__ inline Eight load_eight_once(const Bf16* matrix, int64_t i) {
    const int4 bits = arch::load_global_chunk_once(matrix + 8 * i);
    return *reinterpret_cast<const Eight*>(&bits);
}

}  // namespace mok::kernels
