#pragma once

#include "kernels/backward_params.h"
#include "kernels/layout.cuh"

namespace mok::kernels {

// What the scheduler tells the loader and the consumers about a task of a backward.
struct BackwardEntry {
    plan::TaskKind kind;
    bool more;    // false: the program has ended
    bool shared;  // the shared expert's
    int32_t expert;
    int32_t tile, part, piece;  // the task's
    int32_t begin;              // first slot; of the shared expert the first token
    int32_t ring_row;           // its row in the ring, or in the shared expert's buffers
    int32_t num_rows;           // real rows from there on: of a tile 0..128, of a wgrad its piece's
    int32_t k_blocks;           // blocks of products
    // Of a wgrad:
    plan::WgradTile at;
    bool continues, ends;  // its piece
    bool has_work;         // without rows nothing is added
    bool stores;           // to the caller's gradient
    bool by_stage;         // FP32, through a stage
    bool is_bf16;          // that gradient
    bool has_bias;         // the bias gradient of the tile's rows is this task's
    GradMode mode;
};

// Tasks between the scheduler and the others. A task keeps its entry until it is told.
inline constexpr int kEntries = 4;

struct BackwardSharedMemory : SharedMemory {
    BackwardEntry entries[kEntries];
    TaskTimes times[kEntries];            // consumer 0 -> teller, where the pass is traced
    arch::Barrier entry_full[kEntries];   // scheduler -> loader, consumers, teller
    arch::Barrier entry_done[kEntries];   // consumers -> teller: what the task stored is in memory
    arch::Barrier entry_empty[kEntries];  // all readers -> scheduler
};
inline constexpr int kBackwardSharedBytes = sizeof(BackwardSharedMemory) + 1024;
static_assert(kBackwardSharedBytes <= 232448, "227 KB of shared memory a CTA");

// Rows of gate and up travel through a stage 64 columns at a time, behind a DownDgrad task's
// products: gate where A lies, up where B begins; w * hidden has the stage's last third.
inline constexpr int kUpBytes = kABytes;
inline constexpr int kWHiddenBytes = 2 * kABytes;
static_assert(kWHiddenBytes + kABytes <= kStageBytes);
inline constexpr int kGateUpBlockCols = 64;

// A wgrad task's FP32 sums leave by one more stage, which the loader hands over empty: six blocks
// of 64 rows x 128 bytes, three a consumer.
inline constexpr int kStageBlocks = kStageBytes / kStagingBytes / kConsumers;

__device__ inline int32_t gate_up_blocks(int32_t width, int32_t part) {
    return min(plan::kDownDgradCols / kGateUpBlockCols,
               plan::ceil_div(width - part * plan::kDownDgradCols, kGateUpBlockCols));
}

// Where rows from `slot` on (a multiple of 64) lie in a buffer: in the context or the ring. The
// shared expert's rows are tokens of buffers of their own. An entry's slots lie in one macrobatch,
// so their ring rows follow each other.
struct RowPlace {
    bool kept;
    int32_t row;
};
__device__ inline RowPlace row_place(const plan::Pass& pass, const BackwardEntry& e,
                                     plan::RowBuffer buffer, int32_t slot) {
    const bool kept = !e.shared && plan::row_is_kept(pass, buffer, slot);
    return {kept, kept ? slot : e.ring_row + (slot - e.begin)};
}

// The gradient that a wgrad task adds to, and that of its bias.
struct WgradTarget {
    const WeightGradient& matrix;
    const WeightGradient& bias;
    int32_t rows, cols;
    int64_t scratch, bias_scratch;  // offsets of one expert's partial sums
};
__device__ inline WgradTarget wgrad_target(const BackwardParams& p, const BackwardEntry& e) {
    const ExpertGradients& g = e.shared ? p.shared_grads : p.grads;
    const int32_t h = p.pass.problem.hidden, i = plan::width_of(p.pass.problem, e.shared);
    const int64_t area = int64_t{h} * i;
    switch (e.kind) {
        case plan::TaskKind::GateWgrad:
            return {g.gate, g.gate_bias, i, h, 0, 3 * area};
        case plan::TaskKind::UpWgrad:
            return {g.up, g.up_bias, i, h, area, 3 * area + i};
        default:
            return {g.down, g.down_bias, h, i, 2 * area, 3 * area + 2 * i};
    }
}

// Whether a wgrad's sums go on from the expert's previous piece or, Chain, from the old gradient.
__device__ inline bool wgrad_continues(const BackwardEntry& e, const WgradTarget& target) {
    return e.continues || (e.mode == GradMode::Chain && target.matrix.wanted);
}

}  // namespace mok::kernels
