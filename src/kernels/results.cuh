#pragma once

#include <bit>

#include "arch/copy.cuh"
#include "arch/wgmma.cuh"
#include "kernels/eights.cuh"
#include "kernels/for_each_constant.cuh"
#include "kernels/forward_params.h"
#include "kernels/layout.cuh"

// What the consumers of every pass make of their sums on the way out: biases, rounding beside a
// limit, blocks of 64 rows x 64 columns through the staging.
namespace mok::kernels {

// Two neighbours as saved_gate and saved_up have them, without a branch: a branch an element would
// cost the epilogue more than the products of four k blocks.
template <class Magnitude>
__device__ inline uint32_t packed_beside(Pair p, float limit, Magnitude&& magnitude) {
    const uint32_t both = packed(p);
    const float low = __uint_as_float(both << 16), high = __uint_as_float(both & 0xffff0000u);
    const uint32_t step_low = (magnitude(p.low) > limit) - (magnitude(low) > limit);
    const uint32_t step_high = (magnitude(p.high) > limit) - (magnitude(high) > limit);
    return ((both + step_low) & 0xffffu) | ((both & 0xffff0000u) + (step_high << 16));
}

// Values that rounding to BF16 may take across a limit: those between its neighbours in BF16. A
// warp looks whether it has one, which is rare, for far fewer instructions than it takes to round
// every value with the limit in mind. See saved_gate and saved_up.
class LimitZone {
  public:
    __device__ explicit LimitZone(float limit)
        : limit_(limit),
          below_(std::bit_cast<float>(std::bit_cast<uint32_t>(limit) & 0xffff0000u)),
          above_(std::bit_cast<float>((std::bit_cast<uint32_t>(limit) & 0xffff0000u) + 0x10000u)),
          middle_(0.5f * (below_ + above_)) {}

    // Of a magnitude: below half_width() in the zone.
    __device__ float distance(float v) const { return fabsf(fabsf(v) - middle_); }
    __device__ float half_width() const { return above_ - middle_; }
    // A value in the zone becomes the neighbour on its side of the limit; others stay.
    __device__ float out_of(float v) const {
        return v > below_ && v < above_ ? (v > limit_ ? above_ : below_) : v;
    }

  private:
    float limit_, below_, above_, middle_;
};

// Writes half h of every warp's 16 rows of a [64, 64] block of BF16 results to staging: value(j, h)
// gives columns 8j + 2 (t % 4) and the next of a row, packed, j < 8. The warp calls it when nobody
// reads its part of the staging any more, and synchronises before anybody does.
template <class Value>
__device__ inline void stage_half(uint8_t* staging, int h, Value&& value) {
    const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
    const uint32_t base = arch::shared_address(staging);
#pragma unroll
    for (int j0 = 0; j0 < 8; j0 += 4) {
        uint32_t v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            v[j] = value(j0 + j, h);
        }
        // 16-byte chunk c of row r lies at c ^ (r % 8): the swizzle of the store's tensor map.
        const int r = 16 * warp + 8 * h + lane % 8, c = j0 + lane / 8;
        arch::store_matrix_x4(base + r * 128 + ((c ^ (r & 7)) << 4), v);
    }
}
template <class Value>
__device__ inline void stage_block(uint8_t* staging, Value&& value) {
#pragma unroll
    for (int h = 0; h < 2; ++h) stage_half(staging, h, value);
}

// A [64, 64] block of BF16 results to rows that lie anywhere, by every warp for its own 16 rows,
// through its part of the staging: eight threads have 128 bytes of a row. put(i, chunk) gets row
// block_row(i) of the consumer's 64 and its columns 8 (lane % 8) up to + 7. Nobody else reads or
// writes the staging meanwhile. By ordinary stores, which nobody waits for: of the copy engine's a
// warp would have to wait for the staging.
__device__ __forceinline__ int block_row(int i) {
    return 16 * (threadIdx.x % 128 / 32) + 4 * i + threadIdx.x % 32 / 8;
}
template <class Stage, class Put>
__device__ __forceinline__ void put_staged(uint8_t* staging, Stage&& stage, Put&& put) {
    const int c = threadIdx.x % 8;
    __syncwarp();  // the last block is read
    stage();
    __syncwarp();
    const uint32_t base = arch::shared_address(staging);
    int4 chunks[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int r = block_row(i);
        chunks[i] = arch::load_shared_chunk(base + r * 128 + ((c ^ (r & 7)) << 4));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) put(i, chunks[i]);
}
template <class Value, class Put>
__device__ __forceinline__ void put_block(uint8_t* staging, Value&& value, Put&& put) {
    put_staged(
        staging, [&] { stage_block(staging, value); }, put);
}

// When what is stored is read: in this pass, in a later one.
enum class Reads { Soon, Later };

// A tile's columns of y, from col0 on, to this thread's two rows of [H] at home; null: nowhere.
__device__ __forceinline__ void push_y(Bf16* const (&rows)[2], int32_t col0, int32_t hidden,
                                       const float (&sum)[128]) {
    const int32_t col = col0 + Eights::own_column();
    const int32_t groups = Eights::groups_below(hidden - col);
    Bf16* const at[2] = {rows[0] + col, rows[1] + col};
    const int32_t ends[2] = {rows[0] == nullptr ? 0 : groups, rows[1] == nullptr ? 0 : groups};
    for_each_constant<plan::kOutCols / Eights::kCols>([&](auto g) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int4 eight = packed_eight([&](int c) { return sum[Eights::index(g, h, c)]; });
            arch::store_global_chunk_below<g, Eights::kBytes * g>(at[h], ends[h], eight);
        }
    });
}

// A staged block to rows 64 * consumer up to + 63 of a tile, of which `row` is the first, by one
// thread's tile store.
template <class Engine, class Value>
__device__ inline void store_block(SharedMemory& smem, int consumer, const CUtensorMap* map,
                                   int32_t col, int32_t row, Value&& value) {
    const bool first = threadIdx.x % 128 == 0;
    if (first) arch::wait_stores_read<0>();
    Engine::sync(consumer);
    stage_block(Engine::rows_of(smem.staging[0], consumer), value);
    arch::fence_shared_to_copies();
    Engine::sync(consumer);
    if (first) {
        arch::store_tile(map, col, row, 0, smem.staging[consumer]);
        arch::commit_stores();
    }
}

// Element `col` of a BF16 vector, zero past its end or where there is none.
__device__ inline float bias_at(bool there, const Bf16* at, int32_t col, int32_t cols) {
    return there && col < cols ? to_f32(at[col]) : 0.0f;
}

// The biases of an expert's part of gate and up, of width columns, to the sums of both.
template <class Columns = PlainColumns>
__device__ __forceinline__ void add_gate_up_bias(const Biases& biases, int32_t expert, int32_t part,
                                                 int32_t width, float (&sum)[128]) {
    const int64_t at = int64_t{expert} * width;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32_t col = part * plan::kGateUpCols + Columns::column(j, i);
            const float g = bias_at(biases.gate, biases.gate_at + at, col, width);
            const float u = bias_at(biases.up, biases.up_at + at, col, width);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                sum[4 * j + 2 * h + i] += g;
                sum[64 + 4 * j + 2 * h + i] += u;
            }
        }
    }
}
// A bias of `cols` columns to sums of some of them, from col0 on.
template <class Columns = PlainColumns, int kCount>
__device__ __forceinline__ void add_bias(const Bf16* bias, int32_t col0, int32_t cols,
                                         float (&sum)[kCount]) {
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float b = bias_at(true, bias, col0 + Columns::column(j, i), cols);
            sum[4 * j + i] += b;
            sum[4 * j + 2 + i] += b;
        }
    }
}

}  // namespace mok::kernels
