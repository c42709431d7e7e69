#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/memory_map.h"
#include "plan/program.h"

namespace mok::plan::fixture {

// What tasks read and write, from the equations of design.md sections 5 and 6 and the list of
// buffers in plan/memory_map.h; it asks plan/signals.h nothing. A place is a row (x, d_y) or a
// column tile of a row tile (all else), in the ring, in the context or in the caller's memory.
enum class Store : int32_t {
    RingX,
    RingDY,
    RingX8,
    RingDY8,
    RingGateUp,
    RingOperands,
    RingGrads8,  // d_gate and d_up in FP8
    RingHidden,
    RingOut,
    RingPartials,
    ContextX,
    ContextDY,
    ContextGateUp,
    ContextOperands,
    SharedHidden,
    SharedOperands,
    SharedOut,
    SharedPartials,
    Scratch,
    Gradient,
};
struct Place {
    Store store;
    int32_t index;  // row or row tile; of Scratch the kind of task; of Gradient expert * 16 + kind
    int32_t col;    // column tile; of Scratch and Gradient the part
    auto operator<=>(const Place&) const = default;
};
struct Access {
    bool writes;
    Place place;
    int32_t owner;  // whose data: slot, tile, or piece
};

class AccessModel {
  public:
    explicit AccessModel(const Pass& pass)
        : pass_(pass), p_(pass.problem), t_(pass.table), kind_(pass.kind) {}

    // The owner of what lies in a place when the pass begins: what earlier passes left in the
    // context. -1: nothing.
    int32_t initial_owner(const Place& place) const {
        const bool backward = kind_ == PassKind::Backward || kind_ == PassKind::BackwardInput ||
                              kind_ == PassKind::Wgrad;
        switch (place.store) {
            case Store::ContextX:
            case Store::ContextGateUp:
                return backward ? place.index : -1;
            case Store::ContextDY:
            case Store::ContextOperands:
            case Store::SharedOperands:
                return kind_ == PassKind::Wgrad ? place.index : -1;
            default:
                return -1;
        }
    }

    std::vector<Access> of(const Task& task) {
        accesses_.clear();
        const int32_t tile = task.tile;
        switch (task.kind) {
            case TaskKind::DispatchX:
            case TaskKind::DispatchDY:
                dispatch(task);
                break;
            case TaskKind::GateUp:
                fp8(tile) ? rows_of(Store::RingX8, tile) : x_rows(tile);
                if (is_shared(tile) || tile * 128 < p_.context_rows) {
                    at(true, gate_up_store(tile), tile, task.part);
                }
                if (kind_ == PassKind::Forward) at(true, hidden_store(tile), tile, task.part);
                break;
            case TaskKind::Down:
                columns(false, hidden_store(tile), tile, inner_cols(tile));
                at(true, out_store(tile), tile, task.part);
                break;
            case TaskKind::CombineY:
                columns(false, Store::RingOut, tile, out_cols());
                break;
            case TaskKind::Replay:
                fp8(tile) ? rows_of(Store::RingX8, tile) : x_rows(tile);
                at(true, Store::RingGateUp, tile, task.part);
                break;
            case TaskKind::DownDgrad:
                fp8(tile) ? rows_of(Store::RingDY8, tile) : d_y_rows(tile);
                for (int32_t col = 2 * task.part;
                     col < std::min(2 * task.part + 2, inner_cols(tile)); ++col) {
                    at(false, gate_up_store(tile), tile, col);
                    at(true, operands_store(tile), tile, col);
                    if (fp8(tile) && kind_ != PassKind::Wgrad) {
                        at(true, Store::RingGrads8, tile, col);
                    }
                    at(true, partials_store(tile), tile, col);
                }
                // <d_y, down bias>, of d_y in BF16.
                if (task.part == 0) {
                    at(true, partials_store(tile), tile, inner_cols(tile));
                    if (fp8(tile)) d_y_rows(tile);
                }
                break;
            case TaskKind::GateUpDgrad:
                columns(false, fp8(tile) ? Store::RingGrads8 : operands_store(tile), tile,
                        inner_cols(tile));
                at(true, out_store(tile), tile, task.part);
                break;
            case TaskKind::CombineDX:
                columns(false, Store::RingOut, tile, out_cols());
                columns(false, Store::RingPartials, tile, inner_cols(tile) + 1);
                break;
            default:
                wgrad(task);
        }
        return accesses_;
    }

  private:
    bool fp8(int32_t tile) const { return p_.precision != Precision::BF16 && !is_shared(tile); }
    bool is_shared(int32_t tile) const { return tile >= max_tiles(p_); }
    bool kept(int32_t tile) const { return tile * 128 < p_.context_rows; }
    bool split_backward() const {
        return kind_ == PassKind::BackwardInput || kind_ == PassKind::Wgrad;
    }
    int32_t out_cols() const { return (p_.hidden + 255) / 256; }
    int32_t inner_cols(int32_t tile) const {
        return ((is_shared(tile) ? p_.shared_intermediate : p_.intermediate) + 127) / 128;
    }
    Store gate_up_store(int32_t tile) const {
        return is_shared(tile) || kept(tile) ? Store::ContextGateUp : Store::RingGateUp;
    }
    Store hidden_store(int32_t tile) const {
        return is_shared(tile) ? Store::SharedHidden : Store::RingHidden;
    }
    Store operands_store(int32_t tile) const {
        if (is_shared(tile)) return Store::SharedOperands;
        return split_backward() && kept(tile) ? Store::ContextOperands : Store::RingOperands;
    }
    Store out_store(int32_t tile) const {
        return is_shared(tile) ? Store::SharedOut : Store::RingOut;
    }
    Store partials_store(int32_t tile) const {
        return is_shared(tile) ? Store::SharedPartials : Store::RingPartials;
    }

    // A row tile's column tile. Ring rows come round again every B rows.
    void at(bool writes, Store store, int32_t tile, int32_t col) {
        const bool ring = store <= Store::RingPartials;
        const int32_t index = ring ? tile * 128 % p_.macrobatch_rows / 128 : tile;
        accesses_.push_back({writes, {store, index, col}, tile});
    }
    void columns(bool writes, Store store, int32_t tile, int32_t cols) {
        for (int32_t col = 0; col < cols; ++col) at(writes, store, tile, col);
    }
    void row(bool writes, bool in_context, Store context, Store ring, int32_t slot) {
        const Place place =
            in_context ? Place{context, slot, 0} : Place{ring, slot % p_.macrobatch_rows, 0};
        accesses_.push_back({writes, place, slot});
    }
    void x_row(bool writes, int32_t slot) {
        row(writes, p_.keep_x && kept(slot / 128), Store::ContextX, Store::RingX, slot);
    }
    void d_y_row(bool writes, int32_t slot) {
        row(writes, p_.keep_x && kept(slot / 128) && split_backward(), Store::ContextDY,
            Store::RingDY, slot);
    }
    // The shared expert reads this rank's own x and d_y where they were published.
    void x_rows(int32_t tile) {
        if (is_shared(tile)) return;
        for (int32_t i = 0; i < 128; ++i) x_row(false, tile * 128 + i);
    }
    void d_y_rows(int32_t tile) {
        if (is_shared(tile)) return;
        for (int32_t i = 0; i < 128; ++i) d_y_row(false, tile * 128 + i);
    }
    // Rows in FP8 of a tile, all in the ring.
    void rows_of(Store store, int32_t tile) {
        for (int32_t i = 0; i < 128; ++i) row(false, false, store, store, tile * 128 + i);
    }
    // A row in FP8 is written where a product of the pass reads it; a forward then keeps x in BF16
    // in the context alone.
    void write_row(TaskKind dispatch, int32_t slot) {
        const bool x = dispatch == TaskKind::DispatchX, beyond = !kept(slot / 128);
        const bool backward = initial_owner({Store::ContextGateUp, 0, 0}) == 0;
        const bool is_fp8 = p_.precision != Precision::BF16;
        if (x && (!is_fp8 || backward || (p_.keep_x && !beyond))) x_row(true, slot);
        if (!x) d_y_row(true, slot);
        if (!is_fp8) return;
        const bool read = x ? beyond || !backward : beyond || kind_ != PassKind::Wgrad;
        const Store store = x ? Store::RingX8 : Store::RingDY8;
        if (read) row(true, false, store, store, slot);
    }
    void dispatch(const Task& task) {
        const int32_t begin = task.tile * 128 + task.part * 8;
        for (int32_t slot = begin; slot < begin + 8; ++slot) {
            if (t_.slot_lead[slot] != slot) continue;
            for (int32_t to = slot; to >= 0; to = t_.slot_next[to]) {
                write_row(task.kind, to);
            }
        }
    }
    void wgrad(const Task& task) {
        const bool down = task.kind == TaskKind::DownWgrad;
        const auto kind = static_cast<int32_t>(task.kind);
        if (task.piece < 0) {
            const int32_t tiles = (p_.num_tokens + 127) / 128;
            for (int32_t i = 0; i < tiles; ++i) {
                const int32_t tile = max_tiles(p_) + i;
                columns(false, Store::SharedOperands, tile, inner_cols(tile));
            }
            accesses_.push_back({true, {Store::Gradient, -16 + kind, task.part}, 0});
            return;
        }
        const Piece piece = piece_at(p_, t_, task.macro, task.piece);
        for (int32_t tile = piece.begin / 128; tile < piece.end / 128; ++tile) {
            columns(false, operands_store(tile), tile, inner_cols(tile));
            down ? d_y_rows(tile) : x_rows(tile);
        }
        const Place scratch{Store::Scratch, kind, task.part};
        if (piece.continues) accesses_.push_back({false, scratch, task.piece - 1});
        if (!piece.ends) {
            accesses_.push_back({true, scratch, task.piece});
        } else {
            const Place gradient{Store::Gradient, piece.expert * 16 + kind, task.part};
            accesses_.push_back({true, gradient, 0});
        }
    }

    const Pass& pass_;
    const Problem& p_;
    const RouteTable& t_;
    PassKind kind_;
    std::vector<Access> accesses_;
};

}  // namespace mok::plan::fixture
