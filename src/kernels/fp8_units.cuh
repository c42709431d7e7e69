#pragma once

#include "kernels/consumer.cuh"
#include "kernels/fp8_backward.h"
#include "kernels/fp8_elements.cuh"
#include "kernels/fp8_unit_order.h"

// Units: what quantises the operands of a backward in Fp8Block, once, from their rows in BF16. A
// unit has up to kUnitBlocks blocks of 128 rows x 128 columns of one operand of one tile, each in a
// stage, and writes it by rows, for products with weights, by slots, for weight gradients, or both.
namespace mok::kernels {

// A unit's entry is of no compute task's kind and has no rows, so that the consumers pass over it,
// which their engine does by quantising: at.row says how many real rows the tile has, piece which
// operand it is, part its first block.
inline constexpr plan::TaskKind kUnitTask = plan::TaskKind::DispatchX;
__device__ inline bool is_unit(const BackwardEntry& e) {
    return e.kind == kUnitTask;
}
__device__ inline void set_unit(const plan::Problem& problem, UnitKind kind, int32_t share,
                                BackwardEntry& e) {
    const UnitShare unit = unit_share(problem, kind, share);
    e.kind = kUnitTask;
    e.piece = static_cast<int32_t>(unit.operand);
    e.part = unit.first_block;
    e.k_blocks = unit.num_blocks;
    e.num_rows = 0;
}

// The counters of a kind.
__device__ inline uint32_t* unit_ticket(const Fp8BackwardParams& p, UnitKind kind) {
    return p.quantised + static_cast<int32_t>(kind) * (1 + p.pass.first_shared_tile);
}
__device__ inline uint32_t* units_done(const Fp8BackwardParams& p, UnitKind kind, int32_t tile) {
    return unit_ticket(p, kind) + 1 + tile;
}

// ---- By slots ---------------------------------------------------------------------------------
// A warp's 16 columns of a block of 128 slots x 64 columns in BF16: lane l has columns 2 (l % 8)
// and the next of 32 slots, those of group l / 8. at[i] is slot i ^ 2 (l / 8) of the group, so that
// a warp's lanes use all banks.
struct SlotPairs {
    uint32_t at[32];

    __device__ static int group() { return threadIdx.x % 32 / 8; }
    __device__ static int pair() { return threadIdx.x % 8; }

    __device__ __forceinline__ void read(uint32_t block) {
        const int warp = threadIdx.x % 128 / 32, flip = 2 * group();
        const int chunk = 2 * warp + pair() / 4;
        const uint32_t from = block + group() * 32 * 128 + pair() % 4 * 4;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const int low = (i ^ flip) & 7;
            at[i] = arch::load_shared_word(from + i / 8 * 1024 + low * 128 + ((chunk ^ low) << 4));
        }
    }
    // Slots from num_rows on count as zeros.
    __device__ __forceinline__ void cut(int32_t num_rows) {
        const int flip = 2 * group(), first = 32 * group();
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            if (first + (i ^ flip) >= num_rows) at[i] = 0;
        }
    }
    // Of both columns, over all groups.
    __device__ __forceinline__ uint32_t sizes() const {
        uint32_t most = 0;
#pragma unroll
        for (const uint32_t p : at) most = max_sizes(most, p);
        most = max_halves(most, __shfl_xor_sync(~0u, most, 8));
        return max_halves(most, __shfl_xor_sync(~0u, most, 16));
    }
    // Values of blocks near the least exponents, times what their dividers lift them by.
    __device__ __forceinline__ void lift(const Fp8Divider& low, const Fp8Divider& high) {
        if (!__any_sync(~0u, low.lift() != 1.0f || high.lift() != 1.0f)) return;
        const uint32_t factors = packed({low.lift(), high.lift()});
#pragma unroll
        for (uint32_t& p : at) p = multiply_pairs(p, factors);
    }
    // The elements of a column's 32 slots, lifted, in order.
    template <class Value>
    __device__ __forceinline__ void elements(const Fp8Divider& divider, uint32_t (&words)[8],
                                             Value&& value) const {
        uint32_t v[8];
        const uint32_t halves = group() & 1 ? 0x1032u : 0x3210u;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            uint32_t both[2];
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                both[k] = two_elements(divider.quotient_of_lifted(value(at[4 * i + 2 * k])),
                                       divider.quotient_of_lifted(value(at[4 * i + 2 * k + 1])));
            }
            v[i] = __byte_perm(both[0] | both[1] << 16, 0, halves);
        }
        const bool swaps = (group() & 2) != 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) words[i] = swaps ? v[i ^ 1] : v[i];
    }
};

__device__ inline void store_words(uint32_t at, const uint32_t (&words)[8], int half) {
    arch::store_shared_chunk(
        at, int4{static_cast<int>(words[4 * half]), static_cast<int>(words[4 * half + 1]),
                 static_cast<int>(words[4 * half + 2]), static_cast<int>(words[4 * half + 3])});
}

// 16 columns x 128 slots of elements to the warp's part of the staging, swizzled, and their scales.
__device__ __forceinline__ void stage_slots(uint32_t staging, SlotPairs& pairs, float* scales) {
    const uint32_t sizes = pairs.sizes();
    const int group = SlotPairs::group(), column = 2 * SlotPairs::pair();
    const Fp8Divider dividers[2] = {Fp8Divider(Amax{static_cast<uint16_t>(sizes)}),
                                    Fp8Divider(Amax{static_cast<uint16_t>(sizes >> 16)})};
    pairs.lift(dividers[0], dividers[1]);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
        const Fp8Divider& divider = dividers[which];
        if (group == 0) scales[column + which] = divider.scale();
        uint32_t words[8];
        if (which == 0) {
            pairs.elements(divider, words, [](uint32_t p) { return __uint_as_float(p << 16); });
        } else {
            pairs.elements(divider, words,
                           [](uint32_t p) { return __uint_as_float(p & 0xffff0000u); });
        }
        const int row = column + which;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            store_words(staging + chunk_offset(row, 2 * group + half), words, half);
        }
    }
}

// ---- By rows ----------------------------------------------------------------------------------
// A warp's 16 rows of 128 columns, two lanes a row with 64 columns each, which lie in two blocks of
// 64. Chunk i is chunk i ^ 4 (l % 2) of the lane's eight: so a warp's lanes use all banks.
struct RowPairs {
    uint32_t at[32];

    __device__ static int row() { return threadIdx.x % 128 / 2; }  // of the consumer's 64
    __device__ static int half() { return threadIdx.x % 2; }

    __device__ __forceinline__ void read(uint32_t rows) {
        const uint32_t from = rows + half() * kABytes;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int4 v = arch::load_shared_chunk(from + chunk_offset(row(), i ^ (4 * half())));
            at[4 * i] = v.x;
            at[4 * i + 1] = v.y;
            at[4 * i + 2] = v.z;
            at[4 * i + 3] = v.w;
        }
    }
    __device__ __forceinline__ Amax amax() const {
        uint32_t sizes = 0;
#pragma unroll
        for (const uint32_t p : at) sizes = max_sizes(sizes, p);
        const uint32_t size = larger_half(sizes).bits;
        return {static_cast<uint16_t>(max(size, __shfl_xor_sync(~0u, size, 1)))};
    }
    // As of SlotPairs.
    __device__ __forceinline__ void lift(const Fp8Divider& divider) {
        if (!__any_sync(~0u, divider.lift() != 1.0f)) return;
        const uint32_t factors = packed({divider.lift(), divider.lift()});
#pragma unroll
        for (uint32_t& p : at) p = multiply_pairs(p, factors);
    }
};

// Elements of the rows to swizzled rows of 128 bytes at `staging`, the consumer's first. Returns
// the row's scale.
__device__ __forceinline__ float stage_row_elements(uint32_t staging, RowPairs& pairs) {
    const Fp8Divider divider(pairs.amax());
    const int half = RowPairs::half();
    pairs.lift(divider);
    const auto elements = [&](uint32_t pair) -> uint32_t {
        return two_elements(divider.quotient_of_lifted(__uint_as_float(pair << 16)),
                            divider.quotient_of_lifted(__uint_as_float(pair & 0xffff0000u)));
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        uint32_t words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            words[w] = elements(pairs.at[8 * i + 2 * w]) | elements(pairs.at[8 * i + 2 * w + 1])
                                                               << 16;
        }
        const int chunk = 4 * half + (i ^ (2 * half));
        arch::store_shared_chunk(staging + chunk_offset(RowPairs::row(), chunk),
                                 int4{static_cast<int>(words[0]), static_cast<int>(words[1]),
                                      static_cast<int>(words[2]), static_cast<int>(words[3])});
    }
    return divider.scale();
}

// ---- A unit -----------------------------------------------------------------------------------
// Where an operand goes; null: nowhere.
struct UnitTargets {
    Fp8Rows rows, slots;
    int32_t cols;
};
__device__ inline UnitTargets targets_of(const Fp8BackwardParams& p, Operand operand) {
    const int32_t h = p.pass.problem.hidden, i = p.pass.problem.intermediate;
    const Fp8Rows nowhere{nullptr, nullptr};
    switch (operand) {
        case Operand::DY:
            return {p.d_y, p.d_y_slots, h};
        case Operand::DGate:
            return {p.d_gate, p.d_gate_slots, i};
        case Operand::DUp:
            return {p.d_up, p.d_up_slots, i};
        case Operand::WHidden:
            return {nowhere, p.w_hidden_slots, i};
        default:
            return {nowhere, p.x_slots, h};
    }
}

// What a unit's entry says.
struct Unit {
    Operand operand;
    int32_t first_block, num_blocks, ring_row, num_rows;
};

// A consumer's share of a unit: of every block its 64 rows by rows and its 64 columns by slots.
// Its warps store for themselves, in ordinary stores, each through its 2 KB of the consumer's
// staging, which nobody else uses by now. Products read the elements by copies: every lane's fence
// lies between.
class UnitTask {
  public:
    __device__ UnitTask(const Fp8BackwardParams& p, const Unit& unit, SharedMemory& smem,
                        int consumer)
        : unit_(unit),
          to_(targets_of(p, unit.operand)),
          stages_(arch::shared_address(smem.stage[0])),
          staging_(arch::shared_address(smem.staging[consumer])),
          blocks_(plan::ceil_div(to_.cols, 128)),
          consumer_(consumer) {
        if (!plan::has_wgrads(p.pass.kind)) to_.slots.elements = nullptr;
        // DownDgrad alone reads rows in a pass without input gradients.
        if (p.pass.kind == plan::PassKind::Wgrad && unit.operand != Operand::DY) {
            to_.rows.elements = nullptr;
        }
    }

    // Every block of the unit, from the stages that next_stage() gives, back by release().
    template <class NextStage, class Release>
    __device__ __forceinline__ void run(NextStage&& next_stage, Release&& release) {
        if (to_.rows.elements != nullptr) {
            run_blocks<true>(next_stage, release);
        } else {
            run_blocks<false>(next_stage, release);
        }
        arch::fence_global_to_copies();
    }

  private:
    // A stage is given back when all threads of the consumer have read it: a branch between reading
    // and using would put what was read into local memory.
    template <bool kByRows, class NextStage, class Release>
    __device__ __forceinline__ void run_blocks(NextStage&& next_stage, Release&& release) {
#pragma unroll 1
        for (int32_t i = 0; i < unit_.num_blocks; ++i) {
            const int index = next_stage();
            const uint32_t stage = stages_ + index * kStageBytes;
            SlotPairs slots;
            RowPairs rows;
            slots.read(stage + consumer_ * kABytes);
            if constexpr (kByRows) rows.read(stage + consumer_ * (kABytes / 2));
            arch::warpgroup_sync(1 + consumer_);
            release(index);
            if (!kByRows || to_.slots.elements != nullptr) {
                store_slots(slots, unit_.first_block + i);
            }
            if constexpr (kByRows) store_rows(rows, unit_.first_block + i);
        }
    }
    __device__ static int warp() {
        return threadIdx.x % 128 / 32;
    }
    // The warp's 16 pieces of 128 bytes in its staging, swizzled, to `to` and every `pitch` bytes
    // on.
    __device__ __forceinline__ void store(uint8_t* to, int64_t pitch) const {
        __syncwarp();
        const int row = threadIdx.x % 32 / 8, chunk = threadIdx.x % 8;
        const uint32_t from = staging_ + warp() * kWarpBytes;
        int4 chunks[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            chunks[i] = arch::load_shared_chunk(from + chunk_offset(4 * i + row, chunk));
        }
        uint8_t* const at = to + row * pitch + 16 * chunk;
#pragma unroll
        for (int i = 0; i < 4; ++i) arch::store_global_chunk(at + 4 * i * pitch, chunks[i]);
        __syncwarp();  // the staging is read
    }
    __device__ __forceinline__ void store_slots(SlotPairs& pairs, int32_t block) const {
        if (unit_.num_rows < plan::kTileRows) pairs.cut(unit_.num_rows);
        const int32_t col = 128 * block + 64 * consumer_ + 16 * warp();
        const int64_t column = int64_t{unit_.ring_row / plan::kTileRows} * blocks_ * 128 + col;
        stage_slots(staging_ + warp() * kWarpBytes, pairs, to_.slots.scales + column);
        store(to_.slots.elements + column * plan::kTileRows, plan::kTileRows);
    }
    __device__ __forceinline__ void store_rows(RowPairs& pairs, int32_t block) const {
        const float scale = stage_row_elements(staging_, pairs);
        if (RowPairs::half() == 0) {
            to_.rows.scales[int64_t{unit_.ring_row} * blocks_ + block * plan::kTileRows +
                            64 * consumer_ + RowPairs::row()] = scale;
        }
        const int64_t row = unit_.ring_row + 64 * consumer_ + 16 * warp();
        store(to_.rows.elements + row * blocks_ * 128 + 128 * block, int64_t{blocks_} * 128);
    }

    static constexpr uint32_t kWarpBytes = 16 * 128;

    Unit unit_;
    UnitTargets to_;
    uint32_t stages_, staging_;
    int32_t blocks_;
    int consumer_;
};

}  // namespace mok::kernels
