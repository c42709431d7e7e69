#pragma once

#include "kernels/backward_layout.cuh"
#include "kernels/tensor_memory.cuh"

namespace mok::kernels {

// The operands as BackwardLoader brings them.
__device__ inline Products products_of(const BackwardParams& p, const BackwardEntry& e) {
    using enum arch::Major;
    const int32_t k_blocks = e.k_blocks;
    switch (e.kind) {
        case plan::TaskKind::Replay:
            return {k_blocks, K, K, false, false, 0};
        case plan::TaskKind::DownDgrad: {
            const int32_t width = plan::width_of(p.pass.problem, e.shared);
            return {k_blocks, K, Outer, false, false, gate_up_blocks(width, e.part)};
        }
        case plan::TaskKind::GateUpDgrad:
            return {k_blocks, K, Outer, false, false, 0};
        default: {
            const bool continues = wgrad_continues(e, wgrad_target(p, e));
            return {k_blocks, Outer, Outer, continues, e.has_bias, e.by_stage ? 1 : 0};
        }
    }
}

}  // namespace mok::kernels
