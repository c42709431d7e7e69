#pragma once

#include "kernels/backward_layout.cuh"
#include "kernels/mxfp8_rounding.cuh"
#include "kernels/mxfp8_unpack.cuh"
#include "kernels/quantise_values.cuh"

// BF16 in shared memory, swizzled rows of 64 columns, to the elements that Fp8Block gives it, as
// BF16 numbers in place, and their scales: blocks of 128 along a row or down a column, which two
// stages hold.
namespace mok::kernels {

struct Fp8BackwardSharedMemory : BackwardSharedMemory {
    float row_scale[plan::kTileRows];  // of A's rows, or of its columns where these are multiplied
    float col_scale[plan::kOutCols];   // of B's columns of a weight gradient
};
inline constexpr int kFp8BackwardSharedBytes = sizeof(Fp8BackwardSharedMemory) + 1024;
static_assert(kFp8BackwardSharedBytes <= 232448, "227 KB of shared memory a CTA");

// Two values of blocks with these divisors.
__device__ inline uint32_t elements_as_bf16(uint32_t pair, const Fp8Divider& low,
                                            const Fp8Divider& high) {
    const uint32_t both = two_elements(low.quotient(__uint_as_float(pair << 16)),
                                       high.quotient(__uint_as_float(pair & 0xffff0000u)));
    constexpr Ue8m0 kOne{127};
    return multiply_pairs(small_pair((both & 0xffu) << 8 | (both & 0xff00u) << 16),
                          lifted_scale_pair(kOne));
}

// The two stages of a block of 128 along K; second is -1 where K ends with the first.
struct StagePair {
    int first, second;
    __device__ int at(int i) const { return i == 0 ? first : second; }
};

// A consumer's 64 rows of A, two threads a row, one for each stage: 128 elements a row, 128 bytes,
// in the first stage's rows, swizzled as BF16 is. Elements behind K's end are zero.
__device__ inline void make_row_elements(Fp8BackwardSharedMemory& smem, int consumer,
                                         const StagePair& stages) {
    const int thread = threadIdx.x % 128, row = thread / 2, half = thread % 2;
    const bool has = stages.at(half) >= 0;
    const uint32_t offset = consumer * 64 * 128;
    const uint32_t from =
        arch::shared_address(smem.stage[has ? stages.at(half) : stages.first]) + offset;
    uint32_t pair[32];
    uint32_t sizes = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        // Neighbours begin with other chunks, so that a warp's lanes use all banks.
        const int4 v = arch::load_shared_chunk(from + chunk_offset(row, i ^ (4 * half)));
        pair[4 * i] = v.x;
        pair[4 * i + 1] = v.y;
        pair[4 * i + 2] = v.z;
        pair[4 * i + 3] = v.w;
    }
#pragma unroll
    for (const uint32_t p : pair) sizes = max_sizes(sizes, p);
    uint32_t size = has ? larger_half(sizes).bits : 0;
    size = max(size, __shfl_xor_sync(~0u, size, 1));  // and both have read
    const Fp8Divider divider(Amax{static_cast<uint16_t>(size)});
    if (half == 0) smem.row_scale[64 * consumer + row] = divider.scale();
    const auto elements = [&](int i) {
        const uint32_t p = pair[i];
        return has ? two_elements(divider.quotient(__uint_as_float(p << 16)),
                                  divider.quotient(__uint_as_float(p & 0xffff0000u)))
                   : 0u;
    };
    const uint32_t to = arch::shared_address(smem.stage[stages.first]) + offset;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        // 16 elements: chunks 2i and 2i + 1 of BF16, which lie where i ^ (4 half) says.
        uint32_t words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            words[w] = elements(8 * i + 2 * w) | elements(8 * i + 2 * w + 1) << 16;
        }
        const int chunk = 4 * half + (i ^ (2 * half));
        arch::store_shared_chunk(to + chunk_offset(row, chunk),
                                 int4{static_cast<int>(words[0]), static_cast<int>(words[1]),
                                      static_cast<int>(words[2]), static_cast<int>(words[3])});
    }
}

// Of a weight gradient's operands the consumer's columns of A and its half of B's: three blocks of
// 64 columns, of which a warp has 32 slots and a lane two columns. Nobody else uses the consumer's
// staging.
__device__ inline void make_column_elements(Fp8BackwardSharedMemory& smem, int consumer,
                                            const StagePair& stages) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int stage = stages.at(warp / 2), row = warp % 2 * 32, byte = 4 * lane;
    constexpr int kPairs = 96;
    auto* const all_sizes = reinterpret_cast<uint32_t*>(smem.staging[consumer]);  // [warp][pair]
    static_assert(4 * kPairs * sizeof(uint32_t) <= kStagingBytes);
    const auto block = [&](int b) {
        const int offset =
            b == 0 ? consumer * 64 * 128 : kABytes + (2 * consumer + b - 1) * 64 * 128;
        return arch::shared_address(smem.stage[stage]) + offset;
    };
#pragma unroll
    for (int b = 0; b < 3; ++b) {
        uint32_t sizes = 0;
        if (stage >= 0) sizes = ColumnPart<32>(block(b), row, byte).amaxes();
        all_sizes[warp * kPairs + 32 * b + lane] = sizes;
    }
    arch::warpgroup_sync(1 + consumer);
#pragma unroll 1
    for (int b = 0; b < 3; ++b) {
        uint32_t sizes = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            sizes = max_halves(sizes, all_sizes[w * kPairs + 32 * b + lane]);
        }
        const Fp8Divider low(Amax{static_cast<uint16_t>(sizes)});
        const Fp8Divider high(Amax{static_cast<uint16_t>(sizes >> 16)});
        if (warp == 0) {
            float* const scale = b == 0 ? smem.row_scale + 64 * consumer
                                        : smem.col_scale + (2 * consumer + b - 1) * 64;
            scale[2 * lane] = low.scale();
            scale[2 * lane + 1] = high.scale();
        }
        if (stage < 0) continue;
        const uint32_t at = block(b);
#pragma unroll 8
        for (int i = 0; i < 32; ++i) {
            const uint32_t place = ColumnPart<32>::place(at, row + i, byte);
            arch::store_shared_word(place,
                                    elements_as_bf16(arch::load_shared_word(place), low, high));
        }
    }
}

}  // namespace mok::kernels
