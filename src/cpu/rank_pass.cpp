#include "cpu/rank_pass.h"

#include "cpu/tasks.h"

namespace mok::cpu {
namespace {

using plan::RowBuffer;

RowBuffer buffer_of(Rows rows) {
    switch (rows) {
        case Rows::X:
            return RowBuffer::X;
        case Rows::DY:
            return RowBuffer::DY;
        case Rows::Gate:
        case Rows::Up:
            return RowBuffer::GateUp;
        case Rows::Out:
            return RowBuffer::Out;
        default:
            return RowBuffer::Operands;
    }
}

Bf16* base_of(const RowMemory& m, Rows rows) {
    switch (rows) {
        case Rows::X:
            return m.x;
        case Rows::DY:
            return m.d_y;
        case Rows::Gate:
            return m.gate;
        case Rows::Up:
            return m.up;
        case Rows::WHidden:
            return m.w_hidden;
        case Rows::DGate:
            return m.d_gate;
        case Rows::DUp:
            return m.d_up;
        default:
            return m.out;
    }
}

const Fp8Row& base_of(const RowMemory& m, Rows8 rows) {
    switch (rows) {
        case Rows8::X:
            return m.x8;
        case Rows8::DY:
            return m.d_y8;
        case Rows8::Gate:
            return m.gate8;
        case Rows8::Up:
            return m.up8;
        case Rows8::Hidden:
        case Rows8::DGate:
            return m.d_gate8;
        default:
            return m.d_up8;
    }
}

bool is_hidden_wide(Rows rows) {
    return rows == Rows::X || rows == Rows::DY || rows == Rows::Out;
}

TileRows shared_rows(const RankPass& d, Rows rows, int32_t tile) {
    const plan::Problem& p = d.problem();
    const int64_t token = int64_t{tile - plan::max_tiles(p)} * plan::kTileRows;
    const int64_t cols = is_hidden_wide(rows) ? p.hidden : p.shared_intermediate;
    Bf16* base = nullptr;
    switch (rows) {
        case Rows::X:
            base = d.own_window().x;
            break;
        case Rows::DY:
            base = d.own_window().d_y;
            break;
        case Rows::Gate:
            base = d.shared.gate;
            break;
        case Rows::Up:
            base = d.shared.up;
            break;
        case Rows::WHidden:
            base = d.shared.w_hidden;
            break;
        case Rows::DGate:
            base = d.shared.d_gate;
            break;
        case Rows::DUp:
            base = d.shared.d_up;
            break;
        case Rows::Out:
            base = d.shared.out;
            break;
    }
    const int64_t left = p.num_tokens - token;
    return {base + token * cols, cols, left < plan::kTileRows ? left : plan::kTileRows};
}

// The row of a slot in the context or the ring.
int64_t row_of(const RankPass& d, RowBuffer buffer, int32_t slot, bool& kept) {
    kept = plan::row_is_kept(d.pass, buffer, slot);
    return kept ? slot : plan::ring_row(d.problem(), slot);
}

}  // namespace

Bf16* slot_row(const RankPass& d, Rows rows, int32_t slot) {
    bool kept = false;
    const int64_t row = row_of(d, buffer_of(rows), slot, kept);
    const int64_t cols = is_hidden_wide(rows) ? d.problem().hidden : d.problem().intermediate;
    return base_of(kept ? d.kept : d.ring, rows) + row * cols;
}

Fp8Tile fp8_tile(const RankPass& d, Rows8 rows, int32_t tile) {
    const bool saved = rows == Rows8::Gate || rows == Rows8::Up;
    const int32_t slot = tile * plan::kTileRows;
    bool kept = false;
    const int64_t row =
        saved ? row_of(d, RowBuffer::GateUp, slot, kept) : plan::ring_row(d.problem(), slot);
    const Fp8Row& base = base_of(kept ? d.kept : d.ring, rows);
    const int64_t cols =
        rows == Rows8::X || rows == Rows8::DY ? d.problem().hidden : d.problem().intermediate;
    const int64_t padded = plan::fp8_padded(cols);
    return {base.elements + row * padded, base.scales + row * plan::fp8_scale_bytes(cols), padded};
}

float* slot_weight(const RankPass& d, int32_t slot) {
    bool kept = false;
    const int64_t row = row_of(d, RowBuffer::DY, slot, kept);
    return (kept ? d.kept : d.ring).row_weights + row;
}

TileRows tile_rows(const RankPass& d, Rows rows, int32_t tile) {
    const plan::Problem& p = d.problem();
    if (plan::is_shared_tile(p, tile)) return shared_rows(d, rows, tile);
    const int64_t cols = is_hidden_wide(rows) ? p.hidden : p.intermediate;
    return {slot_row(d, rows, tile * plan::kTileRows), cols, plan::tile_rows(p, d.table(), tile)};
}

const float* tile_row_weights(const RankPass& d, int32_t tile) {
    const plan::Problem& p = d.problem();
    if (!plan::is_shared_tile(p, tile)) return slot_weight(d, tile * plan::kTileRows);
    return d.shared.weights + int64_t{tile - plan::max_tiles(p)} * plan::kTileRows;
}

float* tile_router_partials(const RankPass& d, int32_t tile) {
    const plan::Problem& p = d.problem();
    const bool shared = plan::is_shared_tile(p, tile);
    const int64_t stride = plan::gate_up_parts(p, shared) + 1;
    if (!shared) {
        return d.ring.router_partials + plan::ring_row(p, tile * plan::kTileRows) * stride;
    }
    const int64_t token = int64_t{tile - plan::max_tiles(p)} * plan::kTileRows;
    return d.shared.router_partials + token * stride;
}

void run_task(const RankPass& d, const plan::Task& task) {
    switch (task.kind) {
        case plan::TaskKind::DispatchX:
            return dispatch_x(d, task);
        case plan::TaskKind::DispatchDY:
            return dispatch_d_y(d, task);
        case plan::TaskKind::GateUp:
        case plan::TaskKind::Replay:
            return gate_up(d, task);
        case plan::TaskKind::Down:
            return down(d, task);
        case plan::TaskKind::CombineY:
            return combine_y(d, task);
        case plan::TaskKind::DownDgrad:
            return down_dgrad(d, task);
        case plan::TaskKind::GateUpDgrad:
            return gate_up_dgrad(d, task);
        case plan::TaskKind::CombineDX:
            return combine_d_x(d, task);
        case plan::TaskKind::GateWgrad:
        case plan::TaskKind::UpWgrad:
        case plan::TaskKind::DownWgrad:
            return weight_gradient(d, task);
    }
}

}  // namespace mok::cpu
