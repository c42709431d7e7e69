#pragma once

#include <cstdint>

namespace mok::arch {

inline constexpr int32_t kWarpSize = 32;
inline constexpr uint32_t kWholeWarp = 0xffffffffu;

__device__ inline int32_t lane_idx() {
    return static_cast<int32_t>(threadIdx.x) % kWarpSize;
}
__device__ inline int32_t warp_idx() {
    return static_cast<int32_t>(threadIdx.x) / kWarpSize;
}
// The bits of the lanes before this one.
__device__ inline uint32_t lanes_before() {
    return (1u << lane_idx()) - 1;
}

// Sum of the values of this lane and the lanes before it.
__device__ inline int32_t scan_over_warp(int32_t value) {
    for (int32_t distance = 1; distance < kWarpSize; distance *= 2) {
        const int32_t other = __shfl_up_sync(kWholeWarp, value, distance);
        if (lane_idx() >= distance) value += other;
    }
    return value;
}

// Exclusive prefix sums: put(i, value(0) + ... + value(i - 1)) for each i below count, on the
// thread that called value(i). Returns the sum of all. Called by all threads of a block; warp_sums
// is one int per warp in shared memory. With count > 0 it ends with a barrier of the block, so what
// `put` stored is visible to all.
template <class Value, class Put>
__device__ int32_t scan_over_block(int32_t count, int32_t* warp_sums, Value&& value, Put&& put) {
    const int32_t threads = static_cast<int32_t>(blockDim.x), num_warps = threads / kWarpSize;
    int32_t total = 0;
    for (int32_t begin = 0; begin < count; begin += threads) {
        const int32_t i = begin + static_cast<int32_t>(threadIdx.x);
        const int32_t own = i < count ? value(i) : 0;
        const int32_t up_to_own = scan_over_warp(own);
        if (lane_idx() == kWarpSize - 1) warp_sums[warp_idx()] = up_to_own;
        __syncthreads();
        int32_t before = total + up_to_own - own;
        for (int32_t w = 0; w < num_warps; ++w) {
            const int32_t sum = warp_sums[w];
            if (w < warp_idx()) before += sum;
            total += sum;
        }
        if (i < count) put(i, before);
        __syncthreads();  // warp_sums is read before the next round writes it
    }
    return total;
}

}  // namespace mok::arch
