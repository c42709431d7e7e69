#pragma once

#include "plan/pass.h"

namespace mok::plan {

// A program is the ordered list of a pass's tasks for each role, as count(pass, role) and
// decode(pass, role, i), pure integer functions. Workers of a role claim i = 0, 1, 2, ... by a
// ticket.
//
// Compute works block by block: the shared expert's tiles first (they hide the first dispatch),
// then one block per macrobatch. In a block, minibatches flow through the phases one step apart, so
// that a phase's last wave is covered by another phase:
// (tiles of one expert together, see group_by_group)
//     forward   step s: GateUp(s), Down(s - 1)
//     backward  step s: Replay(s), DownDgrad(s - 1), GateUpDgrad(s - 2); then the weight gradients
//     of
//               the block's pieces, which cover the pushes of d_x.
// A block ends before the next begins, because the next reuses its ring rows.
//
// Communication runs through all minibatches of the routed tiles as one sequence:
//     forward   step s: DispatchX(s), CombineY(s - 2)
//     backward  step s: DispatchDY(s), DispatchX(s - lag), CombineDX(s - lag)
// where x of a macrobatch is all on its way when its last d_y is: weight gradients alone read it,
// so it waits for the d_y that all else waits for. Where gate and up are replayed it does not lag.
// The lags are bounded so that, with the waits of signals.h, every task waits only for tasks that
// come earlier in one common order of both roles: any number of workers >= 1 per role ends. See
// docs/design.md and tests/test_program.

// Minibatches in the order in which a pass works on them.
struct MiniSequence {
    int32_t num_tiles;
    int32_t macro_tiles;
    int32_t mini_tiles;
    bool walks_down;  // last macrobatch first

    MOK_HD int32_t num_macros() const { return ceil_div(num_tiles, macro_tiles); }
    MOK_HD int32_t minis_of_macro(int32_t macro) const {
        return ceil_div(min_of(macro_tiles, num_tiles - macro * macro_tiles), mini_tiles);
    }
    // First minibatch of the macrobatch that is worked on `order`-th; order may be num_macros().
    MOK_HD int32_t first_mini(int32_t order) const {
        const int32_t macros = num_macros(), full = ceil_div(macro_tiles, mini_tiles);
        if (order >= macros) {
            return macros == 0 ? 0 : (macros - 1) * full + minis_of_macro(macros - 1);
        }
        if (!walks_down || order == 0) return order * full;
        return minis_of_macro(macros - 1) + (order - 1) * full;
    }
    MOK_HD int32_t num_minis() const { return first_mini(num_macros()); }
    MOK_HD int32_t macro_at(int32_t order) const {
        return walks_down ? num_macros() - 1 - order : order;
    }
    // Which macrobatch, by order of work, minibatch q belongs to.
    MOK_HD int32_t order_of_mini(int32_t q) const {
        const int32_t full = ceil_div(macro_tiles, mini_tiles);
        if (!walks_down) return q / full;
        const int32_t first = minis_of_macro(num_macros() - 1);
        return q < first ? 0 : 1 + (q - first) / full;
    }
    MOK_HD VisitRange mini(int32_t q) const {
        const int32_t order = order_of_mini(q), begin = macro_at(order) * macro_tiles;
        const int32_t first = begin + (q - first_mini(order)) * mini_tiles;
        return {first, min_of(min_of(first + mini_tiles, begin + macro_tiles), num_tiles)};
    }
    // Visits of minibatches before q that lie in `range`.
    MOK_HD int32_t visits_before(int32_t q, VisitRange range) const {
        if (q <= 0 || num_tiles == 0) return 0;
        const int32_t last = q - 1, begin = macro_at(order_of_mini(last)) * macro_tiles;
        int32_t count = intersect({begin, mini(last).end}, range).count();
        if (walks_down) {
            count += intersect({min_of(begin + macro_tiles, num_tiles), num_tiles}, range).count();
        } else {
            count += intersect({0, begin}, range).count();
        }
        return count;
    }
};

// One kind of task in the pipeline of minibatches.
struct Phase {
    TaskKind kind;
    int32_t lag;       // steps behind the first phase
    int32_t parts;     // tasks per tile
    VisitRange range;  // tiles that take part
    bool catches_up;  // the last step of a macrobatch works on all of its minibatches that are left
};

// Minibatches [first, end) of a sequence flowing through up to three phases.
struct Pipeline {
    MiniSequence sequence;
    Phase phases[3];
    int32_t num_phases;
    int32_t first, end;

    MOK_HD int32_t clamp_mini(int32_t q) const { return min_of(max_of(q, first), end); }
    // Minibatches that a phase has worked on before a step.
    MOK_HD int32_t minis_before(const Phase& phase, int32_t step) const {
        const int32_t q = first + step - phase.lag;
        if (!phase.catches_up || phase.lag == 0) return clamp_mini(q);
        const int32_t now = clamp_mini(first + step);
        if (now >= end) return end;
        return clamp_mini(max_of(q, sequence.first_mini(sequence.order_of_mini(now))));
    }
    MOK_HD int64_t phase_tasks_before(const Phase& phase, int32_t step) const {
        const int32_t tiles = sequence.visits_before(minis_before(phase, step), phase.range) -
                              sequence.visits_before(first, phase.range);
        return int64_t{tiles} * phase.parts;
    }
    MOK_HD int64_t tasks_before_step(int32_t step) const {
        int64_t count = 0;
        for (int32_t i = 0; i < num_phases; ++i) count += phase_tasks_before(phases[i], step);
        return count;
    }
    // The tiles that a phase works on in a step: minibatches of one macrobatch that stand together.
    MOK_HD VisitRange tiles_at(const Phase& phase, int32_t step) const {
        const int32_t from = minis_before(phase, step), to = minis_before(phase, step + 1);
        if (from >= to) return {0, 0};
        return intersect({sequence.mini(from).begin, sequence.mini(to - 1).end}, phase.range);
    }
    MOK_HD int32_t num_steps() const { return end - first + phases[num_phases - 1].lag; }
    MOK_HD int64_t count() const { return tasks_before_step(num_steps()); }
};

// Tasks [begin, begin + parts * tiles) of a pipeline: one step of one phase. Or, of a kind of
// weight gradient, those of all pieces of a macrobatch, which then stand for tiles.
struct PhaseTasks {
    TaskKind kind;
    VisitRange tiles;
    int32_t parts;
    int64_t begin;
    MOK_HD bool has(int64_t i) const {
        return i >= begin && i < begin + int64_t{tiles.count()} * parts;
    }
};
MOK_HD PhaseTasks locate(const Pipeline& pipeline, int64_t i);

MOK_HD Pipeline shared_pipeline(const Pass& pass);
MOK_HD Pipeline compute_pipeline(const Pass& pass, int32_t order);
MOK_HD Pipeline comm_pipeline(const Pass& pass);

MOK_HD int64_t count(const Pass& pass, Role role);
MOK_HD Task decode(const Pass& pass, Role role, int64_t i);

}  // namespace mok::plan

#include "plan/program_inl.h"
