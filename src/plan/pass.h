#pragma once

#include "plan/problem.h"
#include "plan/rows.h"
#include "plan/task.h"

namespace mok::plan {

// The programs that exist. Each is the same machinery with other phases switched on.
enum class PassKind : int32_t {
    Forward,        // output, and the context
    Recompute,      // the context alone, from x (activation checkpointing)
    Backward,       // input gradients and weight gradients
    BackwardInput,  // input gradients; the operands of the weight gradients go to the context
    Wgrad,          // weight gradients from a context that BackwardInput completed
};

// Everything that a program is a function of.
struct Pass {
    Pass() = default;
    MOK_HD Pass(PassKind pass_kind, const Problem& p, const RouteTable& t)
        : kind(pass_kind), problem(p), table(t), first_shared_tile(max_tiles(p)) {}

    PassKind kind;
    Problem problem;
    RouteTable table;
    int32_t first_shared_tile;  // max_tiles(problem), which costs a GPU divisions
};
MOK_HD inline bool is_shared_tile(const Pass& pass, int32_t tile) {
    return tile >= pass.first_shared_tile;
}

// Visits [begin, end), and of the tiles of a pass those that a task kind works on.
struct VisitRange {
    int32_t begin, end;
    MOK_HD int32_t count() const { return end > begin ? end - begin : 0; }
    MOK_HD bool has(int32_t visit) const { return visit >= begin && visit < end; }
};
MOK_HD inline VisitRange intersect(VisitRange a, VisitRange b) {
    return {max_of(a.begin, b.begin), min_of(a.end, b.end)};
}

MOK_HD inline bool is_backward(PassKind kind) {
    return kind >= PassKind::Backward;
}

// Forward passes walk the macrobatches last to first, backward passes first to last: what the
// forward left in the ring is what the backward begins with.
MOK_HD inline bool walks_down(PassKind kind) {
    return !is_backward(kind);
}

// Whether DispatchX pulls x in FP8, as its home has quantised it, instead of in BF16.
MOK_HD inline bool pulls_fp8(const Problem& p, PassKind kind) {
    return is_fp8(p) && p.fp8_dispatch && !p.keep_x && !is_backward(kind);
}

// The routed tiles that a kind works on. Because no run crosses the context's end, tiles below C
// and visits below C are the same set.
MOK_HD inline VisitRange routed_range(const Pass& pass, TaskKind kind) {
    const int32_t all = num_tiles(pass.table);
    const int32_t kept = min_of(pass.problem.context_rows / kTileRows, all);
    const VisitRange none{0, 0}, every{0, all}, below{0, kept}, beyond{kept, all};
    switch (kind) {
        case TaskKind::DispatchX:
            if (pass.kind == PassKind::Forward) return every;
            if (pass.kind == PassKind::Recompute) return below;
            if (pass.kind == PassKind::BackwardInput) return beyond;
            return pass.problem.keep_x ? beyond : every;
        case TaskKind::GateUp:
            if (pass.kind == PassKind::Forward) return every;
            return pass.kind == PassKind::Recompute ? below : none;
        case TaskKind::Down:
        case TaskKind::CombineY:
            return pass.kind == PassKind::Forward ? every : none;
        case TaskKind::Replay:
            return is_backward(pass.kind) ? beyond : none;
        case TaskKind::DispatchDY:
            if (pass.kind == PassKind::Wgrad) return pass.problem.keep_x ? beyond : every;
            return is_backward(pass.kind) ? every : none;
        case TaskKind::DownDgrad:
            if (pass.kind == PassKind::Wgrad) return beyond;
            return is_backward(pass.kind) ? every : none;
        case TaskKind::GateUpDgrad:
        case TaskKind::CombineDX:
            return pass.kind == PassKind::Backward || pass.kind == PassKind::BackwardInput ? every
                                                                                           : none;
        default:
            return none;
    }
}

// Whether the shared expert's tiles take part. Its rows are this rank's own tokens: nothing is
// pulled or pushed, and its gate and up are always in the context.
MOK_HD inline bool shared_takes_part(PassKind pass, TaskKind kind) {
    switch (kind) {
        case TaskKind::GateUp:
            return pass == PassKind::Forward || pass == PassKind::Recompute;
        case TaskKind::Down:
            return pass == PassKind::Forward;
        case TaskKind::DownDgrad:
        case TaskKind::GateUpDgrad:
            return pass == PassKind::Backward || pass == PassKind::BackwardInput;
        default:
            return false;
    }
}

// First element of a weight gradient's tile. Tiles follow each other along I, the short side: those
// of d_gate and d_up [I, H] down the columns, those of d_down [H, I] along the rows. So what runs
// together needs few different columns of x or d_y.
struct WgradTile {
    int32_t row, col;
};
MOK_HD inline WgradTile wgrad_tile(TaskKind kind, int32_t rows, int32_t cols, int32_t part) {
    if (kind == TaskKind::DownWgrad) {
        const int32_t across = ceil_div(cols, kWgradCols);
        return {part / across * kWgradRows, part % across * kWgradCols};
    }
    const int32_t down = ceil_div(rows, kWgradRows);
    return {part % down * kWgradRows, part / down * kWgradCols};
}
// The part whose tile holds an element.
MOK_HD inline int32_t wgrad_part_at(TaskKind kind, int32_t rows, int32_t cols, WgradTile element) {
    const int32_t row = element.row / kWgradRows, col = element.col / kWgradCols;
    return kind == TaskKind::DownWgrad ? row * ceil_div(cols, kWgradCols) + col
                                       : col * ceil_div(rows, kWgradRows) + row;
}

MOK_HD inline bool has_wgrads(PassKind kind) {
    return kind == PassKind::Backward || kind == PassKind::Wgrad;
}
// Whether the operands of the weight gradients outlive the pass (slots below C, shared rows).
MOK_HD inline bool keeps_wgrad_operands(PassKind kind) {
    return kind == PassKind::BackwardInput || kind == PassKind::Wgrad;
}

}  // namespace mok::plan
