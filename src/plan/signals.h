#pragma once

#include "plan/pass.h"
#include "plan/program.h"

namespace mok::plan {

// Counters in one rank's memory, zero when a pass begins. Each has one index function and one
// expected count, and this file alone knows which task arrives where and waits for what.
enum class SignalKind : int32_t {
    XReady,       // per tile: rows of x in place (128)
    DYReady,      // per tile: rows of d_y and w in place (128)
    GateUpReady,  // per tile: sixteens of rows of Replay tasks done
    HiddenReady,  // per tile: those of GateUp or DownDgrad tasks
    OutReady,     // per tile: those of Down or GateUpDgrad tasks: y or d_x is complete
    Sent,         // per tile: rows of y or d_x pushed (128)
    WgradDone,    // per piece: those of weight-gradient tasks
};
inline constexpr int32_t kNumTileSignals = 6;

const char* signal_name(SignalKind kind);

MOK_HD inline int32_t num_tile_indices(const Problem& p) {
    return max_tiles(p) + max_shared_tiles(p);
}
MOK_HD inline int32_t num_signals(const Problem& p) {
    return kNumTileSignals * num_tile_indices(p) + num_local_experts(p) + max_macrobatches(p) + 1;
}
MOK_HD inline int32_t signal_index(const Problem& p, SignalKind kind, int32_t tile_or_piece) {
    return static_cast<int32_t>(kind) * num_tile_indices(p) + tile_or_piece;
}

struct Wait {
    SignalKind kind;
    int32_t index;  // tile or piece
    uint32_t want;
};
struct Arrival {
    SignalKind kind;
    int32_t index;
    uint32_t count;
};

// A compute task arrives once for each 16 rows of its tile: on a GPU as many warps finish them,
// each in its own time. Where one worker does the whole task, it arrives for all at once.
inline constexpr uint32_t kComputeArrivals = kTileRows / 16;

// What a signal holds when everything that it counts is done.
MOK_HD inline uint32_t expected(const Pass& pass, SignalKind kind, bool shared) {
    const Problem& p = pass.problem;
    switch (kind) {
        case SignalKind::GateUpReady:
            return kComputeArrivals * gate_up_parts(p, shared);
        case SignalKind::HiddenReady:
            return kComputeArrivals * (is_backward(pass.kind) ? down_dgrad_parts(p, shared)
                                                              : gate_up_parts(p, shared));
        case SignalKind::OutReady:
            return kComputeArrivals * out_parts(p);
        case SignalKind::WgradDone:
            return kComputeArrivals * wgrad_parts(p, shared);
        default:
            return kTileRows;
    }
}
MOK_HD inline Wait wait_for(const Pass& pass, SignalKind kind, int32_t index) {
    const bool shared = kind != SignalKind::WgradDone && is_shared_tile(pass, index);
    return {kind, index, expected(pass, kind, shared)};
}
MOK_HD inline Wait wait_for_routed(const Pass& pass, SignalKind kind, int32_t index) {
    return {kind, index, expected(pass, kind, false)};
}

// ---- Ring rows --------------------------------------------------------------------------------
// What a tile's rows hold in a pass, and whether they lie in the context instead of the ring.
// X8 and DY8 are rows that dispatch quantises or pulls in FP8: always in the ring.
enum class RowBuffer : int32_t { X, DY, GateUp, Operands, Hidden, Out, X8, DY8 };

MOK_HD inline bool row_is_kept(const Pass& pass, RowBuffer buffer, int32_t slot) {
    if (!in_context(pass.problem, slot)) return false;
    switch (buffer) {
        case RowBuffer::X:
            return pass.problem.keep_x;
        case RowBuffer::GateUp:
            return true;
        case RowBuffer::DY:
            return pass.problem.keep_x && keeps_wgrad_operands(pass.kind);
        case RowBuffer::Operands:
            return keeps_wgrad_operands(pass.kind);  // d_gate, d_up, w*hidden
        default:
            return false;
    }
}

// The tile whose ring rows a tile takes over: the one visited one macrobatch earlier, if `writer`
// put it into this buffer of the ring. -1: the rows are free from the start.
MOK_HD inline int32_t previous_tile(const Pass& pass, RowBuffer buffer, TaskKind writer,
                                    int32_t tile) {
    const Problem& p = pass.problem;
    if (is_shared_tile(pass, tile) || row_is_kept(pass, buffer, tile * kTileRows)) return -1;
    const int32_t macro_tiles = p.macrobatch_rows / kTileRows;
    const int32_t previous = walks_down(pass.kind) ? tile + macro_tiles : tile - macro_tiles;
    if (previous < 0 || !routed_range(pass, writer).has(previous)) return -1;
    return row_is_kept(pass, buffer, previous * kTileRows) ? -1 : previous;
}

// The signal that says that nobody reads the rows of `tile`, a routed one, in `buffer` any more.
MOK_HD inline Wait forward_release_of(const Pass& pass, RowBuffer buffer, int32_t tile) {
    switch (buffer) {
        case RowBuffer::X:
        case RowBuffer::X8:
            return wait_for_routed(pass, SignalKind::HiddenReady, tile);
        case RowBuffer::Hidden:
            return wait_for_routed(pass, SignalKind::OutReady, tile);
        default:
            return wait_for_routed(pass, SignalKind::Sent, tile);
    }
}
MOK_HD inline Wait backward_release_of(const Pass& pass, RowBuffer buffer, int32_t tile) {
    if (has_wgrads(pass.kind) && buffer != RowBuffer::GateUp && buffer != RowBuffer::Out) {
        return wait_for_routed(pass, SignalKind::WgradDone,
                               piece_of_tile(pass.problem, pass.table, tile));
    }
    switch (buffer) {
        case RowBuffer::X:
        case RowBuffer::X8:
            return wait_for_routed(pass, SignalKind::GateUpReady, tile);
        case RowBuffer::DY:
        case RowBuffer::DY8:
        case RowBuffer::GateUp:
            return wait_for_routed(pass, SignalKind::HiddenReady, tile);
        case RowBuffer::Operands:
            return wait_for_routed(pass, SignalKind::OutReady, tile);
        default:
            return wait_for_routed(pass, SignalKind::Sent, tile);
    }
}
MOK_HD inline Wait release_of(const Pass& pass, RowBuffer buffer, int32_t tile) {
    return is_backward(pass.kind) ? backward_release_of(pass, buffer, tile)
                                  : forward_release_of(pass, buffer, tile);
}

template <class Visitor>
MOK_HD void wait_for_release(const Pass& pass, RowBuffer buffer, TaskKind writer, int32_t tile,
                             Visitor&& visit) {
    const int32_t previous = previous_tile(pass, buffer, writer, tile);
    if (previous >= 0) visit(release_of(pass, buffer, previous));
}

// The first of the kCommRows slots of a task of the communication role.
MOK_HD inline int32_t first_comm_slot(const Task& task) {
    return task.tile * kTileRows + task.part * kCommRows;
}

// ---- Waits of every task ----------------------------------------------------------------------
// Of a GateUp or Down task in a forward pass.
template <class Visitor>
MOK_HD void for_each_forward_wait(const Pass& pass, const Task& task, Visitor&& visit) {
    const bool gate_up = task.kind == TaskKind::GateUp, shared = is_shared_tile(pass, task.tile);
    if (!gate_up || !shared) {
        visit(wait_for(pass, gate_up ? SignalKind::XReady : SignalKind::HiddenReady, task.tile));
    }
    // Nobody reads what a Recompute leaves of hidden.
    if (pass.kind != PassKind::Forward) return;
    const RowBuffer buffer = gate_up ? RowBuffer::Hidden : RowBuffer::Out;
    const int32_t previous = previous_tile(pass, buffer, task.kind, task.tile);
    if (previous >= 0) visit(forward_release_of(pass, buffer, previous));
}

// Of a dispatch task: its tile's, then those of each of its slots.
// In FP8 a row in BF16 may lie in the context, but its FP8 row has the ring's place and the same
// readers; so its release covers both.
MOK_HD inline RowBuffer dispatched_buffer(const Problem& p, TaskKind kind) {
    if (kind == TaskKind::DispatchX) return is_fp8(p) ? RowBuffer::X8 : RowBuffer::X;
    return is_fp8(p) ? RowBuffer::DY8 : RowBuffer::DY;
}
template <class Visitor>
MOK_HD void for_each_slot_wait(const Pass& pass, TaskKind kind, int32_t slot, Visitor&& visit) {
    if (pass.table.slot_lead[slot] != slot) return;
    for (int32_t next = pass.table.slot_next[slot]; next >= 0; next = pass.table.slot_next[next]) {
        wait_for_release(pass, dispatched_buffer(pass.problem, kind), kind, next / kTileRows,
                         visit);
    }
}
template <class Visitor>
MOK_HD void for_each_dispatch_wait(const Pass& pass, const Task& task, Visitor&& visit) {
    wait_for_release(pass, dispatched_buffer(pass.problem, task.kind), task.kind, task.tile, visit);
    for (int32_t i = 0; i < kCommRows; ++i) {
        for_each_slot_wait(pass, task.kind, first_comm_slot(task) + i, visit);
    }
}

template <class Visitor>
MOK_HD void for_each_wgrad_wait(const Pass& pass, const Task& task, Visitor&& visit) {
    const Problem& p = pass.problem;
    const bool shared = task.piece < 0;
    VisitRange tiles{pass.first_shared_tile, pass.first_shared_tile + shared_tiles(p)};
    Piece piece{};
    if (!shared) {
        piece = piece_at(p, pass.table, task.macro, task.piece);
        tiles = {piece.begin / kTileRows, piece.end / kTileRows};
    }
    const VisitRange operands = routed_range(pass, TaskKind::DownDgrad);
    const bool down = task.kind == TaskKind::DownWgrad;
    const VisitRange pulled = routed_range(pass, down ? TaskKind::DispatchDY : TaskKind::DispatchX);
    for (int32_t tile = tiles.begin; tile < tiles.end; ++tile) {
        const bool made =
            shared ? shared_takes_part(pass.kind, TaskKind::DownDgrad) : operands.has(tile);
        if (made) visit(wait_for(pass, SignalKind::HiddenReady, tile));
        if (!shared && pulled.has(tile)) {
            visit(wait_for(pass, down ? SignalKind::DYReady : SignalKind::XReady, tile));
        }
    }
    if (shared) return;
    // The partial sum of the expert's previous piece.
    if (piece.continues) visit(wait_for(pass, SignalKind::WgradDone, task.piece - 1));
    // A first partial sum waits for the piece that took the last one out of the scratch.
    if (piece.ends || piece.continues) return;
    for (int32_t macro = task.macro; macro >= 0; --macro) {
        const int32_t first = pass.table.macro_piece_begin[macro];
        if (!piece_at(p, pass.table, macro, first).continues) continue;
        visit(wait_for(pass, SignalKind::WgradDone, first));
        return;
    }
}

// Of a compute task in a backward pass.
template <class Visitor>
MOK_HD void for_each_backward_wait(const Pass& pass, const Task& task, Visitor&& visit) {
    if (is_wgrad(task.kind)) {
        for_each_wgrad_wait(pass, task, visit);
        return;
    }
    const auto wait_for_rows = [&](RowBuffer buffer, TaskKind writer) {
        const int32_t previous = previous_tile(pass, buffer, writer, task.tile);
        if (previous >= 0) visit(backward_release_of(pass, buffer, previous));
    };
    if (task.kind == TaskKind::Replay) {
        visit(wait_for(pass, SignalKind::XReady, task.tile));
        wait_for_rows(RowBuffer::GateUp, task.kind);
    } else if (task.kind == TaskKind::GateUpDgrad) {
        visit(wait_for(pass, SignalKind::HiddenReady, task.tile));
        wait_for_rows(RowBuffer::Out, task.kind);
    } else {
        const bool shared = is_shared_tile(pass, task.tile);
        if (!shared) visit(wait_for(pass, SignalKind::DYReady, task.tile));
        if (!shared && routed_range(pass, TaskKind::Replay).has(task.tile)) {
            visit(wait_for(pass, SignalKind::GateUpReady, task.tile));
        }
        wait_for_rows(RowBuffer::Operands, task.kind);
        // The partial sums of the router gradient leave with d_x.
        wait_for_rows(RowBuffer::Out, TaskKind::CombineDX);
    }
}

template <class Visitor>
MOK_HD void for_each_wait(const Pass& pass, const Task& task, Visitor&& visit) {
    switch (task.kind) {
        case TaskKind::DispatchX:
        case TaskKind::DispatchDY:
            for_each_dispatch_wait(pass, task, visit);
            return;
        case TaskKind::CombineY:
        case TaskKind::CombineDX:
            visit(wait_for_routed(pass, SignalKind::OutReady, task.tile));
            return;
        case TaskKind::GateUp:
        case TaskKind::Down:
            for_each_forward_wait(pass, task, visit);
            return;
        default:
            for_each_backward_wait(pass, task, visit);
    }
}

// ---- Arrivals of every task -------------------------------------------------------------------
// A dispatch task stands for the padding and the leads of its rows, and for the other slots of
// these leads' pull groups wherever they lie. Tokens of this rank have no such others.
// True: the slot counts for the task's own tile.
template <class Visitor>
MOK_HD bool for_each_slot_arrival(const Pass& pass, SignalKind kind, int32_t slot,
                                  Visitor&& visit) {
    if (pass.table.slot_lead[slot] != slot) return false;
    for (int32_t next = pass.table.slot_next[slot]; next >= 0; next = pass.table.slot_next[next]) {
        visit(Arrival{kind, next / kTileRows, 1});
    }
    return true;
}
MOK_HD inline SignalKind dispatched_signal(TaskKind kind) {
    return kind == TaskKind::DispatchX ? SignalKind::XReady : SignalKind::DYReady;
}
template <class Visitor>
MOK_HD void for_each_dispatch_arrival(const Pass& pass, const Task& task, Visitor&& visit) {
    const SignalKind kind = dispatched_signal(task.kind);
    uint32_t own = 0;
    for (int32_t i = 0; i < kCommRows; ++i) {
        if (for_each_slot_arrival(pass, kind, first_comm_slot(task) + i, visit)) ++own;
    }
    if (own > 0) visit(Arrival{kind, task.tile, own});
}

// The one arrival of a compute task on a row tile.
MOK_HD inline Arrival arrival_of_tile(const Task& task) {
    switch (task.kind) {
        case TaskKind::Replay:
            return {SignalKind::GateUpReady, task.tile, kComputeArrivals};
        case TaskKind::GateUp:
        case TaskKind::DownDgrad:
            return {SignalKind::HiddenReady, task.tile, kComputeArrivals};
        default:
            return {SignalKind::OutReady, task.tile, kComputeArrivals};
    }
}
template <class Visitor>
MOK_HD void for_each_compute_arrival(const Task& task, Visitor&& visit) {
    if (!is_wgrad(task.kind)) {
        visit(arrival_of_tile(task));
    } else if (task.piece >= 0) {  // nobody waits for the shared expert's
        visit(Arrival{SignalKind::WgradDone, task.piece, kComputeArrivals});
    }
}

template <class Visitor>
MOK_HD void for_each_arrival(const Pass& pass, const Task& task, Visitor&& visit) {
    switch (task.kind) {
        case TaskKind::DispatchX:
        case TaskKind::DispatchDY:
            for_each_dispatch_arrival(pass, task, visit);
            return;
        case TaskKind::CombineY:
        case TaskKind::CombineDX:
            visit(Arrival{SignalKind::Sent, task.tile, kCommRows});
            return;
        default:
            for_each_compute_arrival(task, visit);
    }
}

}  // namespace mok::plan
