#pragma once

#include "arch/exp2.cuh"
#include "kernels/consumer.cuh"
#include "kernels/for_each_constant.cuh"

// Products and results that a backward has beside the forward's.
namespace mok::kernels {

using arch::Major;

// sum[64, 256] += all k blocks of a task, in order, or from zero where `continues` is false. The
// tensor core is fed one stage ahead of the stage that is given back. beside(k, address) is called
// for every block while it works; the block of A lies at the address until the next call.
template <Major kA, Major kB, class Beside>
__device__ __forceinline__ void multiply_blocks(SharedMemory& smem, arch::RingState<kStages>& stage,
                                                int consumer, int32_t k_blocks, bool continues,
                                                float (&sum)[128], Beside&& beside) {
    const bool first = threadIdx.x % 128 == 0;
    int previous = 0;
    for (int32_t k = 0; k < k_blocks; ++k) {
        arch::barrier_wait(&smem.full[stage.index], stage.parity);
        const uint32_t a =
            arch::shared_address(smem.stage[stage.index]) + consumer * 64 * kTileK * 2;
        const uint64_t a_at = arch::operand_descriptor<kA>(a);
        const uint64_t b_at =
            arch::operand_descriptor<kB>(arch::shared_address(smem.stage[stage.index]) + kABytes);
        arch::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kTileK / 16; ++step) {
            arch::wgmma_m64n256k16<kA, kB>(sum, a_at + step * arch::kOperandStep<kA>,
                                           b_at + step * arch::kOperandStep<kB>,
                                           continues || (k | step) != 0);
        }
        arch::wgmma_commit();
        arch::wgmma_wait<1>();
        if (k > 0 && first) arch::barrier_arrive(&smem.empty[previous]);
        beside(k, a);
        previous = stage.index;
        stage.advance();
    }
    arch::wgmma_wait<0>();
    if (k_blocks > 0 && first) arch::barrier_arrive(&smem.empty[previous]);
}

// The engine of a backward on sm_90a.
class BackwardWgmmaEngine : public WgmmaEngine {
  public:
    using WgmmaEngine::WgmmaEngine;

    // The sums of a task's k blocks. beside(k) is called for every k, or for as many as matter,
    // before they are there.
    template <Major kA, Major kB, class Beside>
    __device__ __forceinline__ void multiply_blocks(int32_t k_blocks, float (&sum)[128],
                                                    Beside&& beside) {
        kernels::multiply_blocks<kA, kB>(smem_, stage_, consumer_, k_blocks, false, sum,
                                         [&](int32_t k, uint32_t) { beside(k); });
    }
    // The same, going on from what task.begin(sum) puts there where task.continues(). Where
    // task.reads_blocks() task.read(k, a) is called too, for every k while the block of A lies at
    // address a; it has read it on return.
    template <Major kA, Major kB, class Task, class Beside>
    __device__ __forceinline__ void add_blocks(int32_t k_blocks, Task& task, float (&sum)[128],
                                               Beside&& beside) {
        // Without a branch: ptxas would not let the products overlap (C7515).
        task.begin(sum);
        kernels::multiply_blocks<kA, kB>(smem_, stage_, consumer_, k_blocks, task.continues(), sum,
                                         [&](int32_t k, uint32_t a) {
                                             beside(k);
                                             task.read(k, a);
                                         });
    }
};

// Where a thread's sums stand in the 64 rows of its consumer, see wgmma.cuh: sum[4j + 2h] and the
// next are columns 8j + column() and the next of row row(h).
struct Fragment {
    __device__ static int row(int h) {
        return 16 * (threadIdx.x % 128 / 32) + 8 * h + threadIdx.x % 32 / 4;
    }
    __device__ static int column() { return 2 * (threadIdx.x % 4); }
    // Byte of (row, block j of 8 columns) in a swizzled block of 128-byte rows of BF16.
    __device__ static uint32_t offset(int r, int j) {
        return r * 128 + ((j ^ (r & 7)) << 4) + 2 * column();
    }
};

// sigmoid's bits without what the exponential does for results below the normal range, which are
// lost in the sum with 1.
struct ShortSigmoid {
    __device__ float operator()(float v) const {
        constexpr float kLog2E = 1.44269504088896341f;
        return __fdividef(1.0f, 1.0f + arch::exp2_normal(v * -kLog2E));
    }
};

// gate and up of one column block, 16-bit pairs, to d_gate, d_up and w * hidden of the same pairs.
struct DownDgradPair {
    uint32_t d_gate, d_up, w_hidden;
};

// Two neighbours of saved gate or up: BF16, packed, or FP32.
__device__ __forceinline__ Pair widened(uint32_t both) {
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
}
__device__ __forceinline__ Pair widened(Pair both) {
    return both;
}

// Two neighbours: d_hidden' (raw), the saved gate and up; adds <d_hidden', hidden> to the partial
// sum.
template <class SavedPair>
__device__ __forceinline__ DownDgradPair down_dgrad_pair(const Activation& a, Pair raw,
                                                         SavedPair gate, SavedPair up, float weight,
                                                         float& partial) {
    const Pair g = widened(gate), u = widened(up);
    const ActivationGrad low = activate_grad(a, g.low, u.low, ShortSigmoid{});
    const ActivationGrad high = activate_grad(a, g.high, u.high, ShortSigmoid{});
    partial = fmaf(raw.low, low.hidden, partial);
    partial = fmaf(raw.high, high.hidden, partial);
    const Pair d_hidden{weight * raw.low, weight * raw.high};
    return {packed({gate_gradient(low, d_hidden.low), gate_gradient(high, d_hidden.high)}),
            packed({up_gradient(low, d_hidden.low), up_gradient(high, d_hidden.high)}),
            packed({weight * low.hidden, weight * high.hidden})};
}

// Writes a [64, 32] block of FP32 results to staging, the swizzle of the store's tensor map: column
// block j < 4 of value(j, h). Rows take the blocks in two orders, so that no two lanes of a store
// meet in a bank.
template <class Value>
__device__ __forceinline__ void stage_f32_block(uint8_t* staging, Value&& value) {
    const int lane = threadIdx.x % 32, r = Fragment::row(0);
    const bool odd = r & 1;
    const uint32_t base = arch::shared_address(staging) + r * 128 + 8 * (lane & 1);
    const int first = (odd ? 4 : 0) ^ (lane % 4 / 2) ^ (r & 7);  // 16-byte chunk of block 0 or 2
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            const Pair even_row = value(step, h), odd_row = value(step ^ 2, h);
            arch::store_shared_pair(base + h * 1024 + ((first ^ (2 * step)) << 4),
                                    odd ? odd_row.low : even_row.low,
                                    odd ? odd_row.high : even_row.high);
        }
    }
}

}  // namespace mok::kernels
