#pragma once

#include "kernels/backward_down_dgrad.cuh"
#include "kernels/mxfp8_params.h"
#include "kernels/mxfp8_results.cuh"
#include "kernels/mxfp8_unpack.cuh"

// Saved gate and up of a backward in Mxfp8 as elements and scales.
namespace mok::kernels {

// A stage has 64 columns of each half of the tile, 64 rows, where the BF16 rows of that half will
// be: the elements of a row in 64 bytes.
class Mxfp8SavedRows {
  public:
    using SavedPair = uint32_t;
    static constexpr bool kWholeBlocks = false;

    __device__ explicit Mxfp8SavedRows(const Mxfp8BackwardParams& p)
        : p_(p), padded_(plan::fp8_padded(p.pass.problem.intermediate)) {}

    // A thread's elements, two j in a word, and the scales of its two rows' blocks of 32.
    struct Block {
        uint32_t gate_at[2][4], up_at[2][4];
        uint32_t gate_scale[2][2], up_scale[2][2];

        __device__ __forceinline__ uint32_t gate(int h, int j, uint32_t) const {
            return unpacked(gate_at[h][j / 2], j, gate_scale[h][j / 4]);
        }
        __device__ __forceinline__ uint32_t up(int h, int j, uint32_t) const {
            return unpacked(up_at[h][j / 2], j, up_scale[h][j / 4]);
        }

      private:
        __device__ static uint32_t unpacked(uint32_t word, int j, uint32_t scale) {
            return unpack_pair(j % 2 == 0 ? low_elements(word) : high_elements(word), scale);
        }
    };

    // The consumer's threads have read on return: what they make may take the place.
    template <class Engine>
    __device__ __forceinline__ Block read(const BackwardEntry& e, const uint8_t* stage, int32_t col,
                                          int consumer) const {
        const RowPlace at = row_place(p_.pass, e, plan::RowBuffer::GateUp, e.begin);
        const Mxfp8GateUp& saved = at.kept ? p_.kept_saved : p_.ring_saved;
        const int half = Engine::half_of_tile(consumer);
        const uint32_t base = arch::shared_address(stage) + half * 64 * 128;
        Block block;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int r = Fragment::row(h) + (Engine::row_offset(consumer) - 64 * half);
            const int64_t scale = scale_tile_index(at.row + 64 * half + r, col / Mxfp8::kBlock,
                                                   padded_ / Mxfp8::kBlock);
            two_scales(saved.gate.scales + scale, block.gate_scale[h]);
            two_scales(saved.up.scales + scale, block.up_scale[h]);
            const uint32_t row = base + r * 64 + Fragment::column();
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                block.gate_at[h][i] = two_pairs(row + 16 * i);
                block.up_at[h][i] = two_pairs(row + 16 * i + kUpBytes);
            }
        }
        Engine::sync(consumer);
        return block;
    }

    // To rows of the ring, `to.row` being row 64 * consumer of the tile; their scales too. Nobody
    // reads the staging but these threads.
    template <class Engine, class Value>
    __device__ __forceinline__ void store(SharedMemory& smem, int consumer, Saved which,
                                          const BlockPlace& to, Value&& value) const {
        const Mxfp8Rows& rows = which == Saved::Gate ? p_.ring_saved.gate : p_.ring_saved.up;
        Engine::sync(consumer);  // each warp's first thread knows that its last stores have read
        const int32_t row = to.row + (Engine::row_offset(consumer) - 64 * consumer);
        save_block(smem.staging[consumer], {which, p_.activation, rows, padded_}, row, to.col,
                   value);
    }

  private:
    __device__ static uint32_t two_pairs(uint32_t address) {
        return arch::load_shared_half(address) |
               static_cast<uint32_t>(arch::load_shared_half(address + 8)) << 16;
    }
    // Two neighbours in a tile of scales; a Replay of this pass may have written them.
    __device__ static void two_scales(const Ue8m0* at, uint32_t (&scale)[2]) {
        const uint16_t both = *reinterpret_cast<const volatile uint16_t*>(at);
        scale[0] = scale_pair({static_cast<uint8_t>(both)});
        scale[1] = scale_pair({static_cast<uint8_t>(both >> 8)});
    }

    const Mxfp8BackwardParams& p_;
    int64_t padded_;
};

}  // namespace mok::kernels
