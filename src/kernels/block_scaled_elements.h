#pragma once

#if defined(__CUDACC__)
#include <cuda_fp8.h>
#endif

#include <bit>
#include <cstdint>

#include "kernels/block_scaled_tiles.h"
#include "kernels/swizzle.h"
#include "math/mxfp8_rounding.h"

// BF16 in shared memory, swizzled rows of 64 columns (128 bytes), to an operand of block-scaled
// products there, K-innermost: rows of 128 elements of k, swizzled, and tiles of 128 x 4 scales.
// Memory reads and writes 32-bit words, chunks of four and bytes at addresses, so that the host can
// run the same code.
#if defined(__CUDACC__)
#define MOK_UNROLLED _Pragma("unroll")
#define MOK_NOT_UNROLLED _Pragma("unroll 1")
#else
#define MOK_UNROLLED
#define MOK_NOT_UNROLLED
#endif

namespace mok::kernels::block_scaled {

inline constexpr uint32_t kBoxBytes = 64 * 128;  // 64 rows of 64 BF16, or of 128 elements
inline constexpr uint32_t kBoxesOfA = plan::kTileRows / 64, kBoxesOfB = plan::kOutCols / 64;

// Four words, the lowest address first.
struct Chunk {
    uint32_t word[4];
};

// A block's scale and elements, two at a time: Mxfp8::scale_of and element_of.
class BlockElements {
  public:
    MOK_HD explicit BlockElements(Amax amax) : scale_(Mxfp8::scale_of(amax)) {
        factor_ = std::bit_cast<float>(scale_.bits == kUe8m0NaN
                                           ? 0x7fc00000u
                                           : static_cast<uint32_t>(254 - scale_.bits) << 23);
    }
    MOK_HD uint32_t scale() const { return scale_.bits; }
    // Of two BF16 values, each in the upper half of a word; the first in the low byte.
    MOK_HD uint32_t pair(uint32_t first, uint32_t second) const {
        const float a = std::bit_cast<float>(first) * factor_;
        const float b = std::bit_cast<float>(second) * factor_;
#if defined(__CUDA_ARCH__)
        return __nv_cvt_float2_to_fp8x2(float2{a, b}, __NV_SATFINITE, __NV_E4M3);
#else
        return to_e4m3(a).bits | uint32_t{to_e4m3(b).bits} << 8;
#endif
    }

  private:
    Ue8m0 scale_;
    float factor_;
};
MOK_HD inline uint32_t low_value(uint32_t pair) {
    return pair << 16;
}
MOK_HD inline uint32_t high_value(uint32_t pair) {
    return pair & 0xffff0000u;
}
MOK_HD inline uint32_t max_sizes_of(uint32_t sizes, uint32_t pair) {
    return max_halves(sizes, pair & 0x7fff7fffu);
}

// Row `row` of A, 128 elements of k: from two blocks of [128 rows][64 columns] one behind the other
// at `from` to row `row` at `elements` and its word of the tile at `scales`.
template <class Memory>
MOK_HD inline void make_row(const Memory& memory, int row, uint32_t from, uint32_t elements,
                            uint32_t scales) {
    uint32_t word = 0;
    MOK_NOT_UNROLLED
    for (int b = 0; b < 4; ++b) {
        uint32_t pair[16], sizes = 0;
        MOK_UNROLLED
        for (int i = 0; i < 4; ++i) {
            const Chunk c = memory.load_chunk(from + b / 2 * kBoxesOfA * kBoxBytes +
                                              chunk_offset(row, b % 2 * 4 + i));
            MOK_UNROLLED
            for (int w = 0; w < 4; ++w) {
                pair[4 * i + w] = c.word[w];
                sizes = max_sizes_of(sizes, c.word[w]);
            }
        }
        const uint32_t low = sizes & 0xffffu, high = sizes >> 16;
        const BlockElements made(Amax{static_cast<uint16_t>(low > high ? low : high)});
        MOK_UNROLLED
        for (int i = 0; i < 2; ++i) {
            Chunk c;
            MOK_UNROLLED
            for (int w = 0; w < 4; ++w) {
                const uint32_t a = pair[8 * i + 2 * w], b2 = pair[8 * i + 2 * w + 1];
                c.word[w] = made.pair(low_value(a), high_value(a)) |
                            made.pair(low_value(b2), high_value(b2)) << 16;
            }
            memory.store_chunk(elements + chunk_offset(row, 2 * b + i), c);
        }
        word |= made.scale() << (8 * b);
    }
    memory.store_word(scales + 4 * scale_place_of_tile(row), word);
}

// A stage of a weight gradient holds 64 slots: boxes of [64 slots][64 columns], two of A's columns,
// then four of B's. Columns become rows of the operands, A's 128 and then B's 256, one behind the
// other, and these have three tiles of scales. This is the work of one thread: two neighbouring
// columns of 32 slots, of box `box`, columns 2 * column_pair and the next, slots [32 half, 32 half
// + 32), which are elements [32 k, 32 k + 32) of the operand's rows.
template <class Memory>
MOK_HD inline void make_two_columns(const Memory& memory, int box, int column_pair, int half, int k,
                                    uint32_t from, uint32_t elements, uint32_t scales) {
    uint32_t pair[32], sizes = 0;
    MOK_UNROLLED
    for (int i = 0; i < 32; ++i) {
        pair[i] =
            memory.load_word(from + box * kBoxBytes + chunk_offset(32 * half + i, column_pair / 4) +
                             column_pair % 4 * 4);
        sizes = max_sizes_of(sizes, pair[i]);
    }
    const BlockElements low(Amax{static_cast<uint16_t>(sizes)});
    const BlockElements high(Amax{static_cast<uint16_t>(sizes >> 16)});
    const int row = 64 * box + 2 * column_pair;
    // Neighbours of four store their columns in two orders, so that eight lanes use all banks.
    const int swapped = column_pair / 4 % 2;
    MOK_UNROLLED
    for (int c = 0; c < 2; ++c) {
        Chunk of_low, of_high;
        MOK_UNROLLED
        for (int w = 0; w < 4; ++w) {
            const uint32_t* p = pair + 16 * c + 4 * w;
            of_low.word[w] = low.pair(low_value(p[0]), low_value(p[1])) |
                             low.pair(low_value(p[2]), low_value(p[3])) << 16;
            of_high.word[w] = high.pair(high_value(p[0]), high_value(p[1])) |
                              high.pair(high_value(p[2]), high_value(p[3])) << 16;
        }
        Chunk first, second;
        MOK_UNROLLED
        for (int w = 0; w < 4; ++w) {
            first.word[w] = swapped ? of_high.word[w] : of_low.word[w];
            second.word[w] = swapped ? of_low.word[w] : of_high.word[w];
        }
        memory.store_chunk(elements + chunk_offset(row + swapped, 2 * k + c), first);
        memory.store_chunk(elements + chunk_offset(row + 1 - swapped, 2 * k + c), second);
    }
    const uint32_t tile = scales + row / kScaleTileOuter * kScaleTileBytes + k;
    memory.store_byte(tile + 4 * scale_place_of_tile(row % kScaleTileOuter), low.scale());
    memory.store_byte(tile + 4 * scale_place_of_tile((row + 1) % kScaleTileOuter), high.scale());
}

// The work of a warp's lane among the four warps that make operands: each stage has 6 boxes of 32
// pairs of columns in two halves of 32 slots.
inline constexpr int kMakers = 128;
template <class Memory>
MOK_HD inline void make_columns(const Memory& memory, int thread, int k, uint32_t from,
                                uint32_t elements, uint32_t scales) {
    const int warp = thread / 32, half = warp % 2;
    MOK_NOT_UNROLLED
    for (int box = warp / 2; box < static_cast<int>(kBoxesOfA + kBoxesOfB); box += 2) {
        make_two_columns(memory, box, thread % 32, half, k + half, from, elements, scales);
    }
}

}  // namespace mok::kernels::block_scaled
