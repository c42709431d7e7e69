#pragma once

#include <cstdint>

#include "math/host_device.h"
#include "plan/problem.h"

namespace mok::kernels {

// What each CTA of a pair brings to a product of both, 256 rows of A x 256 rows of B: its own 128
// rows of tokens and 128 of the task's 256 rows of weights, the first CTA (rank 0) the first.

// A task's rows of B, 0..255, are rows of these matrices of an expert: of GateUp 128 of gate, then
// the same 128 of up; of Down 256 of down.
enum class PairWeights { Gate, Up, Down };
struct PairHalf {
    PairWeights matrix;
    int32_t row;  // the first of 128
};
MOK_HD constexpr PairHalf pair_half(bool gate_up, int32_t part, int32_t rank) {
    if (gate_up) {
        return {rank == 0 ? PairWeights::Gate : PairWeights::Up, part * plan::kGateUpCols};
    }
    return {PairWeights::Down, part * plan::kOutCols + rank * (plan::kOutCols / 2)};
}
static_assert(plan::kGateUpCols == plan::kOutCols / 2 && plan::kTileRows == 128);

}  // namespace mok::kernels
