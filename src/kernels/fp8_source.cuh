#pragma once

#include "arch/copy.cuh"
#include "kernels/fp8_layout.cuh"
#include "kernels/fp8_params.h"
#include "kernels/loader.cuh"

// Where the FP8 forward's operands come from, for the loader role (loader.cuh): tiles of elements,
// and with every block of k the scales of A's rows and of B's two blocks of rows.
namespace mok::kernels::fp8 {

class Source {
  public:
    static constexpr int kTileK = fp8::kTileK;
    static constexpr uint32_t kRowBytes = kScaleBytes;

    __device__ Source(const Fp8ForwardParams& p, const Fp8ExpertMaps& maps, SharedMemory& smem)
        : p_(p), maps_(maps), smem_(smem) {}

    __device__ OperandMaps begin(const TileTask& e) {
        const plan::Problem& problem = p_.pass.problem;
        const bool gate_up = e.kind == static_cast<int32_t>(plan::TaskKind::GateUp);
        k_blocks_ = e.k_blocks;
        row_scales_ =
            (gate_up ? p_.ring_x8.scales : p_.hidden_scales) + int64_t{e.row} * e.k_blocks;
        next_ = 0;
        if (gate_up) {
            weights_[0] = scales_of(p_.gate_weight_scales, e.expert, problem.intermediate, e.part);
            weights_[1] = scales_of(p_.up_weight_scales, e.expert, problem.intermediate, e.part);
        } else {
            const float* down = p_.down_weight_scales;
            weights_[0] = scales_of(down, e.expert, problem.hidden, 2 * e.part);
            weights_[1] = scales_of(down, e.expert, problem.hidden, 2 * e.part + 1);
        }
        read_ahead();
        if (gate_up) return {&maps_.x, &maps_.gate, &maps_.up};
        return {&maps_.hidden_load, &maps_.down, &maps_.down};
    }

    // Called for the task's blocks of k in turn.
    __device__ void write(int stage) {
#pragma unroll
        for (int i = 0; i < 2; ++i) smem_.weight_scale[stage][i] = weight_[i];
        read_ahead();
    }
    __device__ void load_rows(int stage, int32_t k, arch::Barrier* full) const {
        arch::load_bytes(smem_.row_scales(stage), row_scales_ + int64_t{k} * plan::kTileRows,
                         kScaleBytes, full);
    }

  private:
    // Where the scales of a weight's rows [128 block, 128 block + 128) begin, null behind its end.
    __device__ const float* scales_of(const float* scales, int32_t expert, int32_t outer,
                                      int32_t block) const {
        const int32_t blocks = plan::ceil_div(outer, 128);
        if (block >= blocks) return nullptr;
        return scales + (int64_t{expert} * blocks + block) * k_blocks_;
    }
    // The weights' scales are read a block before they are written.
    __device__ void read_ahead() {
        if (next_ == k_blocks_) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            weight_[i] = weights_[i] != nullptr ? __ldg(weights_[i] + next_) : 0.0f;
        }
        ++next_;
    }

    const Fp8ForwardParams& p_;
    const Fp8ExpertMaps& maps_;
    SharedMemory& smem_;
    // Of the task whose blocks are being loaded.
    const float* row_scales_ = nullptr;             // [k_blocks][128]
    const float* weights_[2] = {nullptr, nullptr};  // [k_blocks] each
    float weight_[2];                               // of the block before next_
    int32_t k_blocks_ = 0, next_ = 0;
};

}  // namespace mok::kernels::fp8
