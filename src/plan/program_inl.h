#pragma once

#include "plan/program.h"

namespace mok::plan {

inline constexpr int32_t kForwardCombineLag = 2;
inline constexpr int32_t kBackwardCombineLag = 4;

MOK_HD inline MiniSequence routed_sequence(const Pass& pass) {
    const Problem& p = pass.problem;
    return {num_tiles(pass.table), p.macrobatch_rows / kTileRows, p.minibatch_rows / kTileRows,
            walks_down(pass.kind)};
}

MOK_HD inline PhaseTasks locate(const Pipeline& pipeline, int64_t i) {
    int32_t low = 0, high = pipeline.num_steps() - 1;  // the last step that begins at or before i
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (pipeline.tasks_before_step(middle) <= i) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    int64_t begin = pipeline.tasks_before_step(low);
    for (int32_t k = 0; k < pipeline.num_phases; ++k) {
        const Phase& phase = pipeline.phases[k];
        const VisitRange tiles = pipeline.tiles_at(phase, low);
        const PhaseTasks tasks{phase.kind, tiles, phase.parts, begin};
        if (tasks.has(i)) return tasks;
        begin += int64_t{tiles.count()} * phase.parts;
    }
    return {TaskKind::DispatchX, {0, 0}, 1, i};  // i is not below count()
}

struct TilePart {
    int32_t visit, part;
};
// Communication finishes tile by tile.
MOK_HD inline TilePart tile_by_tile(const PhaseTasks& at, int64_t i) {
    const int32_t rest = static_cast<int32_t>(i - at.begin);
    return {at.tiles.begin + rest / at.parts, rest % at.parts};
}
// Products take the tiles of one expert together, part by part, so that a tile of weights serves
// all of its rows while it is in the cache; of a large expert in groups of equal size, at most
// kGroupTiles, so that their rows stay there too until the last part.
inline constexpr int32_t kGroupTiles = 12;
template <class SegmentEnd>
MOK_HD TilePart group_by_group(const PhaseTasks& at, int64_t i, SegmentEnd&& segment_end_of) {
    int32_t begin = at.tiles.begin, rest = static_cast<int32_t>(i - at.begin);
    while (true) {
        const int32_t all = min_of(segment_end_of(begin), at.tiles.end) - begin;
        if (rest < all * at.parts) {
            const int32_t size = ceil_div(all, ceil_div(all, kGroupTiles));
            const int32_t group = rest / (size * at.parts), first = group * size;
            const int32_t tiles = min_of(size, all - first);
            rest -= first * at.parts;
            return {begin + first + rest % tiles, rest / tiles};
        }
        rest -= all * at.parts;
        begin += all;
    }
}

// Tasks of a row tile of a compute phase.
MOK_HD inline int32_t compute_parts(const Problem& p, TaskKind kind, bool shared) {
    if (kind == TaskKind::Down || kind == TaskKind::GateUpDgrad) return out_parts(p);
    return kind == TaskKind::DownDgrad ? down_dgrad_parts(p, shared) : gate_up_parts(p, shared);
}

// The compute phases of a pass over routed or shared tiles, without their minibatches.
MOK_HD inline void set_compute_phases(const Pass& pass, bool shared, Pipeline& pipeline) {
    const Problem& p = pass.problem;
    const TaskKind forward[] = {TaskKind::GateUp, TaskKind::Down};
    const TaskKind backward[] = {TaskKind::Replay, TaskKind::DownDgrad, TaskKind::GateUpDgrad};
    pipeline.num_phases = is_backward(pass.kind) ? 3 : 2;
    for (int32_t i = 0; i < pipeline.num_phases; ++i) {
        const TaskKind kind = is_backward(pass.kind) ? backward[i] : forward[i];
        const VisitRange shared_range{0, shared_takes_part(pass.kind, kind) ? shared_tiles(p) : 0};
        pipeline.phases[i] = {kind, i, compute_parts(p, kind, shared),
                              shared ? shared_range : routed_range(pass, kind), false};
    }
}

MOK_HD inline Pipeline shared_pipeline(const Pass& pass) {
    const int32_t tiles = shared_tiles(pass.problem);
    Pipeline pipeline;
    pipeline.sequence = {tiles, max_of(tiles, 1), pass.problem.minibatch_rows / kTileRows, false};
    pipeline.first = 0;
    pipeline.end = pipeline.sequence.num_minis();
    set_compute_phases(pass, true, pipeline);
    return pipeline;
}

MOK_HD inline Pipeline compute_pipeline(const Pass& pass, int32_t order) {
    Pipeline pipeline;
    pipeline.sequence = routed_sequence(pass);
    pipeline.first = pipeline.sequence.first_mini(order);
    pipeline.end = pipeline.sequence.first_mini(order + 1);
    set_compute_phases(pass, false, pipeline);
    return pipeline;
}

MOK_HD inline Pipeline comm_pipeline(const Pass& pass) {
    Pipeline pipeline;
    pipeline.sequence = routed_sequence(pass);
    pipeline.first = 0;
    pipeline.end = pipeline.sequence.num_minis();
    const auto phase = [&pass](TaskKind kind, int32_t lag) -> Phase {
        return {kind, lag, kCommParts, routed_range(pass, kind), false};
    };
    if (is_backward(pass.kind)) {
        const int32_t minis = ceil_div(pass.problem.macrobatch_rows, pass.problem.minibatch_rows);
        pipeline.num_phases = 3;
        pipeline.phases[0] = phase(TaskKind::DispatchDY, 0);
        const int32_t lag = min_of(kBackwardCombineLag, minis);
        const bool replays = routed_range(pass, TaskKind::Replay).count() > 0;
        pipeline.phases[1] = phase(TaskKind::DispatchX, replays ? 0 : lag);
        pipeline.phases[1].catches_up = true;
        pipeline.phases[2] = phase(TaskKind::CombineDX, lag);
    } else {
        pipeline.num_phases = 2;
        pipeline.phases[0] = phase(TaskKind::DispatchX, 0);
        pipeline.phases[1] = phase(TaskKind::CombineY, kForwardCombineLag);
    }
    return pipeline;
}

// ---- Weight gradients -------------------------------------------------------------------------
// One expert's tiles: those of d_down first (their operands are ready first), then gate, then up.
MOK_HD inline Task wgrad_task(const Problem& p, bool shared, int32_t part) {
    const int32_t down = down_wgrad_parts(p, shared), gate = gate_wgrad_parts(p, shared);
    Task task{TaskKind::DownWgrad, -1, part, -1, -1};
    if (part >= down + gate) {
        task.kind = TaskKind::UpWgrad;
        task.part = part - down - gate;
    } else if (part >= down) {
        task.kind = TaskKind::GateWgrad;
        task.part = part - down;
    }
    return task;
}
MOK_HD inline int64_t shared_wgrad_tasks(const Pass& pass) {
    return has_wgrads(pass.kind) && pass.problem.shared_intermediate > 0
               ? wgrad_parts(pass.problem, true)
               : 0;
}
MOK_HD inline int64_t routed_wgrad_tasks(const Pass& pass, int32_t pieces) {
    return has_wgrads(pass.kind) ? int64_t{pieces} * wgrad_parts(pass.problem, false) : 0;
}

// ---- The compute role -------------------------------------------------------------------------
MOK_HD inline int64_t shared_block_tasks(const Pass& pass) {
    return shared_pipeline(pass).count() + shared_wgrad_tasks(pass);
}
// Compute blocks of routed tiles: at least one, for experts without rows still get their gradients.
MOK_HD inline int32_t num_blocks(const Pass& pass) {
    return num_macrobatches(pass.problem, pass.table);
}
MOK_HD inline int64_t tasks_before_block(const Pass& pass, int32_t order) {
    const Pipeline pipeline = compute_pipeline(pass, order);
    int64_t tasks = 0;
    for (int32_t i = 0; i < pipeline.num_phases; ++i) {
        const Phase& phase = pipeline.phases[i];
        tasks +=
            int64_t{pipeline.sequence.visits_before(pipeline.first, phase.range)} * phase.parts;
    }
    // Passes with weight gradients walk up: order and macrobatch are one.
    return tasks + routed_wgrad_tasks(pass, pass.table.macro_piece_begin[order]);
}

MOK_HD inline int64_t count(const Pass& pass, Role role) {
    if (role == Role::Comm) return comm_pipeline(pass).count();
    return shared_block_tasks(pass) + tasks_before_block(pass, num_blocks(pass));
}

// A task of the shared expert's tiles, of the routed tiles.
MOK_HD inline Task shared_task(const Pass& pass, const PhaseTasks& at, int64_t i) {
    const TilePart found = group_by_group(at, i, [&at](int32_t) { return at.tiles.end; });
    return {at.kind, pass.first_shared_tile + found.visit, found.part, -1, -1};
}
MOK_HD inline Task routed_task(const Pass& pass, const PhaseTasks& at, int64_t i) {
    const RouteTable& t = pass.table;
    const TilePart found = group_by_group(
        at, i, [&t](int32_t visit) { return segment_end(t, t.tile_expert[visit]) / kTileRows; });
    return {at.kind, tile_at_visit(pass.problem, t, found.visit), found.part, -1, -1};
}

// A weight gradient's task of a routed expert.
MOK_HD inline Task routed_wgrad_task(const Pass& pass, int32_t macro, int32_t rest) {
    const int32_t parts = wgrad_parts(pass.problem, false), piece = rest / parts;
    Task task = wgrad_task(pass.problem, false, rest - piece * parts);
    task.macro = macro;
    task.piece = pass.table.macro_piece_begin[macro] + piece;
    return task;
}

MOK_HD inline Task decode_compute(const Pass& pass, int64_t i) {
    const Problem& p = pass.problem;
    const int64_t shared = shared_block_tasks(pass);
    if (i < shared) {
        const Pipeline pipeline = shared_pipeline(pass);
        const int64_t pipelined = pipeline.count();
        if (i >= pipelined) return wgrad_task(p, true, static_cast<int32_t>(i - pipelined));
        return shared_task(pass, locate(pipeline, i), i);
    }
    int32_t low = 0, high = num_blocks(pass) - 1;  // the last block that begins at or before i
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (shared + tasks_before_block(pass, middle) <= i) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const int64_t block = shared + tasks_before_block(pass, low);
    const Pipeline pipeline = compute_pipeline(pass, low);
    const int64_t pipelined = pipeline.count();
    if (i < block + pipelined) {
        return routed_task(pass, locate(pipeline, i - block), i - block);
    }
    return routed_wgrad_task(pass, low, static_cast<int32_t>(i - block - pipelined));
}

MOK_HD inline Task decode_comm(const Pass& pass, int64_t i) {
    const PhaseTasks phase = locate(comm_pipeline(pass), i);
    const TilePart found = tile_by_tile(phase, i);
    const int32_t tile = tile_at_visit(pass.problem, pass.table, found.visit);
    return {phase.kind, tile, found.part, -1, -1};
}

MOK_HD inline Task decode(const Pass& pass, Role role, int64_t i) {
    return role == Role::Comm ? decode_comm(pass, i) : decode_compute(pass, i);
}

}  // namespace mok::plan
