#pragma once

#include <cstdint>

#include "arch/umma_descriptor.h"
#include "math/scale_tiles.h"
#include "plan/problem.h"
#include "plan/task.h"

namespace mok::kernels {

// Tiles of 128 x 4 E8M0 scales (math/scale_tiles.h) in words: a row's four scales of 128 columns,
// the first in the lowest byte. Where the word of a row of a tile lies among its 128.
MOK_HD constexpr int32_t scale_place_of_tile(int32_t row_of_tile) {
    return row_of_tile % 32 * 4 + row_of_tile / 32;
}
// The tile of row `row`, a multiple of 128, and the first columns of a matrix that has k_tiles
// along its rows.
MOK_HD constexpr int64_t first_scale_tile(int64_t row, int64_t k_tiles) {
    return row / kScaleTileOuter * k_tiles;
}

namespace block_scaled {

// ---- Tensor memory ------------------------------------------------------------------------------
// Two accumulators of 256 columns and 12 columns of scales are more than there is, so the
// accumulators share some columns: the products of a task wait until consumers have read these of
// the task before, which they do first.
inline constexpr int kScaleTiles = 3;  // of a CTA's rows of A, of both halves of B
inline constexpr uint32_t kScalesAt = arch::kTensorColumns - 16;
inline constexpr uint32_t kSecondAt = kScalesAt - plan::kOutCols;
inline constexpr uint32_t kSharedColumns = plan::kOutCols - kSecondAt;
MOK_HD constexpr uint32_t accumulator_at(int i) {
    return i * kSecondAt;
}
static_assert(kScaleTiles * arch::kScaleTileColumns <= arch::kTensorColumns - kScalesAt);

// In the backward: one accumulator, then the scales of the operands of each of two stages.
inline constexpr int kOperandStages = 2;
inline constexpr uint32_t kOperandScalesAt = plan::kOutCols;
inline constexpr uint32_t kOperandScaleColumns = kScaleTiles * arch::kScaleTileColumns;
static_assert(kOperandScalesAt + kOperandStages * kOperandScaleColumns <= arch::kTensorColumns);

// ---- The backward's blocks of k -----------------------------------------------------------------
// An operand has 128 elements of k. It is made of one stage that has 128 columns of rows or, of a
// weight gradient, of two that have 64 slots each; of an input gradient first gate's, then up's. A
// task counts bf16_blocks of 64. Operands of its products:
inline constexpr int kOperandK = 128, kSlotsOfStage = 64;
MOK_HD inline int32_t operand_blocks(plan::TaskKind kind, int32_t bf16_blocks) {
    const int32_t matrices = kind == plan::TaskKind::GateUpDgrad ? 2 : 1;
    return matrices * plan::ceil_div(bf16_blocks / matrices, kOperandK / kSlotsOfStage);
}
// Stages that these are made of.
MOK_HD inline int32_t row_blocks(plan::TaskKind kind, int32_t bf16_blocks) {
    return plan::is_wgrad(kind) ? bf16_blocks : operand_blocks(kind, bf16_blocks);
}

}  // namespace block_scaled
}  // namespace mok::kernels
