#pragma once

#include "plan/memory_map.h"
#include "plan/reader.h"
#include "plan/signals.h"

// Units of a backward in Fp8Block (fp8_units.cuh): which there are, in which order they are made,
// how many before which compute task, and what they wait for. Integers alone, as in plan:
// tests/test_fp8_unit_order runs them in every order that the schedulers can.
//
// Units of a kind are claimed in the order of visits. A compute task brings about only units whose
// inputs come from compute tasks before it and from dispatch, in its own macrobatch, so that the
// common order of all tasks (plan/program.h) holds.
namespace mok::kernels {

enum class Operand : int32_t { DY, DGate, DUp, WHidden, X };
// Their kinds in the order in which they can be made: of d_y, of what DownDgrad makes, of x.
enum class UnitKind : int32_t { DY, Made, X };
static_assert(plan::kQuantisedKinds == 3);

inline constexpr int32_t kUnitBlocks = 8;  // of 128 columns, at most

MOK_HD inline UnitKind kind_of(Operand operand) {
    return operand == Operand::DY  ? UnitKind::DY
           : operand == Operand::X ? UnitKind::X
                                   : UnitKind::Made;
}
MOK_HD inline int32_t units_across(int32_t cols) {
    return plan::ceil_div(cols, kUnitBlocks * 128);
}
// Of a tile: w * hidden, and x, are for weight gradients alone.
MOK_HD inline int32_t units_of_tile(const plan::Pass& pass, UnitKind kind) {
    const bool wgrads = plan::has_wgrads(pass.kind);
    if (kind == UnitKind::Made) return (wgrads ? 3 : 2) * units_across(pass.problem.intermediate);
    return kind == UnitKind::DY || wgrads ? units_across(pass.problem.hidden) : 0;
}

// A tile's units of a kind follow each other, each with some of an operand's blocks.
struct UnitShare {
    Operand operand;
    int32_t first_block, num_blocks;
};
MOK_HD inline UnitShare unit_share(const plan::Problem& problem, UnitKind kind, int32_t share) {
    const int32_t cols = kind == UnitKind::Made ? problem.intermediate : problem.hidden;
    const int32_t across = units_across(cols);
    const int32_t which = kind == UnitKind::Made ? share / across : 0;
    const int32_t first = (share - which * across) * kUnitBlocks;
    const Operand operand = kind == UnitKind::DY  ? Operand::DY
                            : kind == UnitKind::X ? Operand::X
                                                  : Operand::DGate;
    return {static_cast<Operand>(static_cast<int32_t>(operand) + which), first,
            plan::min_of(kUnitBlocks, plan::ceil_div(cols, 128) - first)};
}

// How many units of every kind are to be claimed before a task.
struct UnitsWanted {
    int32_t at[plan::kQuantisedKinds];
};

class UnitsAhead {
  public:
    MOK_HD explicit UnitsAhead(const plan::Pass& pass) : pass_(pass) {
        for (int k = 0; k < plan::kQuantisedKinds; ++k) {
            of_tile_[k] = units_of_tile(pass, static_cast<UnitKind>(k));
        }
    }
    MOK_HD int32_t of_tile(UnitKind kind) const { return of_tile_[static_cast<int>(kind)]; }

    MOK_HD UnitsWanted before(const plan::Task& task) const {
        return plan::is_wgrad(task.kind) ? before_wgrad(task) : before_tile(task);
    }

  private:
    // Visits [0, begin) and `share` of [begin, end).
    MOK_HD int32_t units(UnitKind kind, int32_t begin, int32_t end, float share) const {
        const int32_t each = of_tile(kind);
        return begin * each + static_cast<int32_t>((end - begin) * each * share);
    }
    // All of the task's minibatch; of the next one, or the one before, as the phase goes on.
    MOK_HD UnitsWanted before_tile(const plan::Task& task) const {
        const plan::Problem& problem = pass_.problem;
        const int32_t macro_tiles = problem.macrobatch_rows / plan::kTileRows;
        const int32_t mini = problem.minibatch_rows / plan::kTileRows;
        const int32_t visit = plan::visit_of_tile(problem, pass_.table, task.tile);
        const int32_t macro = visit / macro_tiles * macro_tiles;
        const int32_t last = plan::min_of(macro + macro_tiles, plan::num_tiles(pass_.table));
        const int32_t begin = macro + (visit - macro) / mini * mini;
        const int32_t end = plan::min_of(begin + mini, last);
        const auto back = [&](int32_t minis) { return plan::max_of(macro, begin - minis * mini); };
        const float share =
            static_cast<float>(task.part + 1) / plan::compute_parts(problem, task.kind, false);
        UnitsWanted want{};
        switch (task.kind) {
            case plan::TaskKind::Replay:
                want.at[0] = units(UnitKind::DY, begin, end, share);
                break;
            case plan::TaskKind::DownDgrad:
                want.at[0] = units(UnitKind::DY, end, plan::min_of(end + mini, last), share);
                want.at[1] = units(UnitKind::Made, back(1), begin, share);
                break;
            default:
                want.at[0] = units(UnitKind::DY, end, end, 0.0f);
                want.at[1] = units(UnitKind::Made, end, end, 0.0f);
                // x of these has been dispatched before d_x of the minibatch before can leave.
                want.at[2] = units(UnitKind::X, back(3), back(2), share);
        }
        return want;
    }
    // All of the task's piece; of the next one as the tasks go on.
    MOK_HD UnitsWanted before_wgrad(const plan::Task& task) const {
        const plan::Problem& problem = pass_.problem;
        const int32_t end = end_of(task.macro, task.piece);
        const bool more = task.piece + 1 < pass_.table.macro_piece_begin[task.macro + 1];
        const int32_t next = more ? end_of(task.macro, task.piece + 1) : end;
        int32_t place = task.part;
        if (task.kind != plan::TaskKind::DownWgrad) place += plan::down_wgrad_parts(problem, false);
        if (task.kind == plan::TaskKind::UpWgrad) place += plan::gate_wgrad_parts(problem, false);
        const float share = static_cast<float>(place + 1) / plan::wgrad_parts(problem, false);
        UnitsWanted want;
        for (int k = 0; k < plan::kQuantisedKinds; ++k) {
            want.at[k] = units(static_cast<UnitKind>(k), end, next, share);
        }
        return want;
    }
    MOK_HD int32_t end_of(int32_t macro, int32_t piece) const {
        return plan::piece_at(pass_.problem, pass_.table, macro, piece).end / plan::kTileRows;
    }

    const plan::Pass& pass_;
    int32_t of_tile_[plan::kQuantisedKinds];
};

// What a unit reads, and the rows that it takes over.
template <class Visitor>
MOK_HD void for_each_unit_wait(const plan::Pass& pass, UnitKind kind, int32_t tile,
                               Visitor&& visit) {
    const auto made_by = [&](plan::TaskKind writer) {
        return plan::routed_range(pass, writer).has(tile);
    };
    if (kind == UnitKind::Made) {
        if (made_by(plan::TaskKind::DownDgrad)) {
            visit(plan::wait_for_routed(pass, plan::SignalKind::HiddenReady, tile));
        }
    } else if (made_by(kind == UnitKind::DY ? plan::TaskKind::DispatchDY
                                            : plan::TaskKind::DispatchX)) {
        visit(plan::wait_for_routed(
            pass, kind == UnitKind::DY ? plan::SignalKind::DYReady : plan::SignalKind::XReady,
            tile));
    }
    const int32_t previous = tile - pass.problem.macrobatch_rows / plan::kTileRows;
    if (previous < 0) return;
    // The readers of the same rows of the ring one macrobatch before.
    visit(plan::backward_release_of(pass, plan::RowBuffer::DY8, previous));
    if (!plan::has_wgrads(pass.kind) && kind == UnitKind::Made) {
        visit(plan::wait_for_routed(pass, plan::SignalKind::OutReady, previous));
    }
}

// The tiles of whose units a compute task reads, as visit(kind, first tile, end).
template <class Visitor>
MOK_HD void for_each_units_read(const plan::Pass& pass, const plan::Task& task, Visitor&& visit) {
    if (plan::is_wgrad(task.kind)) {
        const plan::Piece piece = plan::piece_at(pass.problem, pass.table, task.macro, task.piece);
        const int32_t begin = piece.begin / plan::kTileRows, end = piece.end / plan::kTileRows;
        visit(UnitKind::Made, begin, end);
        visit(task.kind == plan::TaskKind::DownWgrad ? UnitKind::DY : UnitKind::X, begin, end);
    } else if (task.kind == plan::TaskKind::DownDgrad) {
        visit(UnitKind::DY, task.tile, task.tile + 1);
    } else if (task.kind == plan::TaskKind::GateUpDgrad) {
        visit(UnitKind::Made, task.tile, task.tile + 1);
    }
}

}  // namespace mok::kernels
