#pragma once

#include <cstdint>

#include "plan/problem.h"
#include "plan/route_table.h"
#include "plan/signals.h"

namespace mok::plan {

// Where every buffer of a rank lies, in bytes from the start of its block. Each buffer begins at a
// multiple of kBufferAlign; one that a problem does not need takes no bytes. All are row-major
// [rows, columns]; bf16 has 2 bytes, f32 and i32 have 4, u64 has 8.
inline constexpr int64_t kBufferAlign = 256;
inline constexpr int64_t kBytesBF16 = 2;
inline constexpr int64_t kBytesF32 = 4;
inline constexpr int64_t kBytesI32 = 4;
inline constexpr int64_t kBytesU64 = 8;

// Hands out one buffer after the other.
struct BlockLayout {
    int64_t end = 0;

    MOK_HD int64_t take(int64_t rows, int64_t cols, int64_t element_bytes) {
        const int64_t begin = end;
        end = round_up(begin + rows * cols * element_bytes, kBufferAlign);
        return begin;
    }
};

// ---- FP8 rows -----------------------------------------------------------------------------------
// Rows of FP8: elements [rows, padded] e4m3, the columns filled up with zeros to whole chunks of
// 128, and their scales, padded / 32 bytes a row in both recipes: one f32 per 128 columns,
// row-major (Fp8Block), or one ue8m0 per 32 columns in tiles of 128 rows x 4 (Mxfp8,
// math/scale_tiles.h). Either way the scales of the 128 rows of a tile are consecutive bytes; in
// rows that no peer reads their order within the tile is the backend's own (docs/precision.md).
struct Fp8RowsMap {
    int64_t elements, scales;
};
inline constexpr int64_t kFp8Chunk = 128;
MOK_HD inline int64_t fp8_padded(int64_t cols) {
    return round_up(cols, kFp8Chunk);
}
MOK_HD inline int64_t fp8_scale_bytes(int64_t cols) {  // of a row
    return fp8_padded(cols) / 32;
}
MOK_HD inline int64_t fp8_row_bytes(int64_t cols) {  // elements and scales
    return fp8_padded(cols) + fp8_scale_bytes(cols);
}
// None without FP8.
MOK_HD inline Fp8RowsMap take_fp8_rows(BlockLayout& block, const Problem& p, int64_t rows,
                                       int64_t cols) {
    const int64_t used = is_fp8(p) ? rows : 0;
    Fp8RowsMap map;
    map.elements = block.take(used, fp8_padded(cols), 1);
    map.scales = block.take(used, fp8_scale_bytes(cols), 1);
    return map;
}

// On a GPU y, d_x and the partial sums of router gradients go home straight from the products'
// kernels: there are no rows of `out`, and the partial sums lie in the window.
enum class RunsOn { Cpu, Gpu };

// ---- Window: what peers read and write --------------------------------------------------------
// Partial sums of a route's router gradient.
MOK_HD inline int64_t router_partials(const Problem& p) {
    return gate_up_parts(p, false) + 1;
}
// Tm is Problem::max_tokens.
struct WindowMap {
    int64_t x;               // [Tm, H] bf16
    int64_t d_y;             // [Tm, H] bf16: the output's gradient
    int64_t topk_weights;    // [Tm, K] f32
    int64_t ids[2];          // [Tm, K] i32 each: a call's and the next call's
    int64_t num_tokens[2];   // [1] i32 each, beside ids
    int64_t combine;         // [Tm * K, H] bf16: y in a forward, d_x in a backward
    int64_t d_topk_weights;  // [Tm, K] f32; CPU
    // [Tm * K, gate_up_parts + 1] f32, as the workspace's; GPU
    int64_t router_partials;
    Fp8RowsMap x8;          // [Tm, H]: x in FP8; scales of both recipes by token, not in tiles
    int64_t barrier_flags;  // [R] u64: each peer's epoch
    int64_t total;
};

MOK_HD inline WindowMap window_map(const Problem& p, RunsOn runs_on = RunsOn::Cpu) {
    const int64_t tokens = p.max_tokens, routes = tokens * p.top_k;
    const bool on_cpu = runs_on == RunsOn::Cpu;
    BlockLayout block;
    WindowMap map;
    map.x = block.take(tokens, p.hidden, kBytesBF16);
    map.d_y = block.take(tokens, p.hidden, kBytesBF16);
    map.topk_weights = block.take(tokens, p.top_k, kBytesF32);
    for (int64_t& ids : map.ids) ids = block.take(tokens, p.top_k, kBytesI32);
    for (int64_t& count : map.num_tokens) count = block.take(1, 1, kBytesI32);
    map.combine = block.take(routes, p.hidden, kBytesBF16);
    map.d_topk_weights = block.take(on_cpu ? tokens : 0, p.top_k, kBytesF32);
    map.router_partials = block.take(on_cpu ? 0 : routes, router_partials(p), kBytesF32);
    map.x8 = take_fp8_rows(block, p, p.fp8_dispatch ? tokens : 0, p.hidden);
    map.barrier_flags = block.take(1, p.num_ranks, kBytesU64);
    map.total = block.end;
    return map;
}

// ---- Workspace: this rank's own memory, shared by all layers ----------------------------------
// Rows of the ring: B, or fewer where no routing can fill it. ring_row() stays below.
MOK_HD inline int64_t ring_rows(const Problem& p) {
    const int64_t slots = max_slots(p);
    return slots < p.macrobatch_rows ? slots : p.macrobatch_rows;
}
// Rows of the shared expert's buffers for `tokens` tokens: whole tiles; none without one.
MOK_HD inline int64_t shared_rows(const Problem& p, int64_t tokens) {
    return p.shared_intermediate > 0 ? round_up(tokens, kTileRows) : 0;
}
// One expert's weight and bias gradients: d_gate [I, H], d_up [I, H], d_down [H, I], then the
// biases [I], [I], [H].
MOK_HD inline int64_t expert_gradient_elements(const Problem& p) {
    const int64_t inner = p.intermediate, hidden = p.hidden;
    return 3 * inner * hidden + 2 * inner + hidden;
}

// Rows: ring_rows(p) in the ring, shared_rows(p, max_tokens) in the shared expert's buffers.
struct WorkspaceMap {
    int64_t x;                // [rows, H] bf16
    int64_t d_y;              // [rows, H] bf16
    int64_t gate, up;         // [rows, I] bf16: of rows that a backward replays; not in FP8
    int64_t w_hidden;         // [rows, I] bf16: hidden in a forward, w * hidden in a backward
    int64_t d_gate, d_up;     // [rows, I] bf16
    int64_t out;              // [rows, H] bf16: y in a forward, d_x in a backward; CPU
    int64_t row_weights;      // [rows] f32: w
    int64_t router_partials;  // [rows, gate_up_parts + 1] f32: one sum every 128 columns, and
                              // <d_y, down bias>; CPU
    Fp8RowsMap x8, d_y8;      // [rows, H]: operands of products over H
    Fp8RowsMap gate8, up8;    // [rows, I]: gate and up of rows that a backward replays
    Fp8RowsMap d_gate8;       // [rows, I]: d_gate of a backward, hidden of a forward
    Fp8RowsMap d_up8;         // [rows, I]
    int64_t wgrad_scratch;    // [expert_gradient_elements] f32, where an expert can be split
    int64_t shared_w_hidden;  // [rows, S] bf16
    int64_t shared_d_gate;    // [rows, S] bf16
    int64_t shared_d_up;      // [rows, S] bf16
    int64_t shared_out;       // [rows, H] bf16
    int64_t shared_router_partials;  // [rows, gate_up_parts + 1] f32
    int64_t signals;                 // [num_signals] u32
    int64_t total;
};

MOK_HD inline WorkspaceMap workspace_map(const Problem& p, RunsOn runs_on = RunsOn::Cpu) {
    const int64_t ring = ring_rows(p), shared = shared_rows(p, p.max_tokens);
    const int64_t on_cpu_ring = runs_on == RunsOn::Cpu ? ring : 0;
    const int64_t shared_partials = gate_up_parts(p, true) + 1;
    const bool splits = max_slots(p) > p.macrobatch_rows;
    BlockLayout block;
    WorkspaceMap map;
    map.x = block.take(ring, p.hidden, kBytesBF16);
    map.d_y = block.take(ring, p.hidden, kBytesBF16);
    map.gate = block.take(is_fp8(p) ? 0 : ring, p.intermediate, kBytesBF16);
    map.up = block.take(is_fp8(p) ? 0 : ring, p.intermediate, kBytesBF16);
    map.w_hidden = block.take(ring, p.intermediate, kBytesBF16);
    map.d_gate = block.take(ring, p.intermediate, kBytesBF16);
    map.d_up = block.take(ring, p.intermediate, kBytesBF16);
    map.out = block.take(on_cpu_ring, p.hidden, kBytesBF16);
    map.row_weights = block.take(ring, 1, kBytesF32);
    map.router_partials = block.take(on_cpu_ring, router_partials(p), kBytesF32);
    map.x8 = take_fp8_rows(block, p, ring, p.hidden);
    map.d_y8 = take_fp8_rows(block, p, ring, p.hidden);
    map.gate8 = take_fp8_rows(block, p, ring, p.intermediate);
    map.up8 = take_fp8_rows(block, p, ring, p.intermediate);
    map.d_gate8 = take_fp8_rows(block, p, ring, p.intermediate);
    map.d_up8 = take_fp8_rows(block, p, ring, p.intermediate);
    map.wgrad_scratch = block.take(splits ? 1 : 0, expert_gradient_elements(p), kBytesF32);
    map.shared_w_hidden = block.take(shared, p.shared_intermediate, kBytesBF16);
    map.shared_d_gate = block.take(shared, p.shared_intermediate, kBytesBF16);
    map.shared_d_up = block.take(shared, p.shared_intermediate, kBytesBF16);
    map.shared_out = block.take(shared, p.hidden, kBytesBF16);
    map.shared_router_partials = block.take(shared, shared_partials, kBytesF32);
    map.signals = block.take(1, num_signals(p), kBytesI32);
    map.total = block.end;
    return map;
}

// ---- Context: what a forward leaves for its backward ------------------------------------------
// rows: routed slots that are kept, min(C, slots of the call). Shared rows: shared_rows(p, tokens),
// tokens being this rank's in the call.
struct ContextMap {
    int64_t gate, up;                // [rows, I] bf16; not in FP8
    Fp8RowsMap gate8, up8;           // [rows, I] in FP8
    int64_t x;                       // [rows, H] bf16, with keep_x
    int64_t shared_gate, shared_up;  // [shared rows, S] bf16
    // From backward_input to wgrad:
    int64_t w_hidden, d_gate, d_up;                       // [rows, I] bf16
    int64_t d_y;                                          // [rows, H] bf16, with keep_x
    int64_t row_weights;                                  // [rows] f32, with keep_x
    int64_t shared_w_hidden, shared_d_gate, shared_d_up;  // [shared rows, S] bf16
    int64_t total;
};

// The buffers of a forward come first: with and without keeps_operands they lie in the same place.
MOK_HD inline ContextMap context_map(const Problem& p, int64_t rows, int64_t tokens,
                                     bool keeps_operands) {
    const int64_t x_rows = p.keep_x ? rows : 0, shared = shared_rows(p, tokens);
    const int64_t operand_rows = keeps_operands ? rows : 0;
    const int64_t d_y_rows = keeps_operands ? x_rows : 0;
    const int64_t shared_operand_rows = keeps_operands ? shared : 0;
    BlockLayout block;
    ContextMap map;
    map.gate = block.take(is_fp8(p) ? 0 : rows, p.intermediate, kBytesBF16);
    map.up = block.take(is_fp8(p) ? 0 : rows, p.intermediate, kBytesBF16);
    map.gate8 = take_fp8_rows(block, p, rows, p.intermediate);
    map.up8 = take_fp8_rows(block, p, rows, p.intermediate);
    map.x = block.take(x_rows, p.hidden, kBytesBF16);
    map.shared_gate = block.take(shared, p.shared_intermediate, kBytesBF16);
    map.shared_up = block.take(shared, p.shared_intermediate, kBytesBF16);
    map.w_hidden = block.take(operand_rows, p.intermediate, kBytesBF16);
    map.d_gate = block.take(operand_rows, p.intermediate, kBytesBF16);
    map.d_up = block.take(operand_rows, p.intermediate, kBytesBF16);
    map.d_y = block.take(d_y_rows, p.hidden, kBytesBF16);
    map.row_weights = block.take(d_y_rows, 1, kBytesF32);
    map.shared_w_hidden = block.take(shared_operand_rows, p.shared_intermediate, kBytesBF16);
    map.shared_d_gate = block.take(shared_operand_rows, p.shared_intermediate, kBytesBF16);
    map.shared_d_up = block.take(shared_operand_rows, p.shared_intermediate, kBytesBF16);
    map.total = block.end;
    return map;
}

// Slots that a context keeps at most, of a call with `tokens` tokens of this rank: the other ranks'
// numbers are theirs.
MOK_HD inline int64_t max_kept_rows(const Problem& p, int64_t tokens) {
    const int64_t experts = num_local_experts(p);
    if (experts == 0) return 0;
    const int64_t routes = (int64_t{p.num_ranks - 1} * p.max_tokens + tokens) * p.top_k;
    const int64_t slots = (routes + experts * (kTileRows - 1)) / kTileRows * kTileRows;
    return slots < p.context_rows ? slots : p.context_rows;
}

// ---- Schedule: what one call's ids become -----------------------------------------------------
struct ScheduleMap {
    int64_t table;  // RouteTable's arrays, i32
    int64_t ids;    // [tokens, K] i32: this rank's own
    int64_t total;
};

// Whose sizes a call's table has: one rank's tokens are all that there are.
MOK_HD inline Problem table_problem(const Problem& p, int64_t tokens) {
    Problem of_call = p;
    if (p.num_ranks == 1) of_call.max_tokens = static_cast<int32_t>(tokens);
    return of_call;
}

MOK_HD inline ScheduleMap schedule_map(const Problem& p, int64_t tokens) {
    BlockLayout block;
    ScheduleMap map;
    map.table = block.take(1, route_table_ints(table_problem(p, tokens)), kBytesI32);
    map.ids = block.take(tokens, p.top_k, kBytesI32);
    map.total = block.end;
    return map;
}

// ---- FP8 weights: this rank's experts, in memory of their own ---------------------------------
// One orientation of one of the matrices: [E_l][outer][padded k] e4m3 and, per expert, the scales
// of [outer, k]: f32 [ceil(outer / 128)][padded k / 128] (Fp8Block), or ue8m0 in tiles of 128 x 4
// (Mxfp8).
struct Fp8MatrixMap {
    int64_t elements, scales;
    int64_t expert_elements, expert_scales;  // bytes of one expert
    int64_t outer, padded_k;
};
struct Fp8WeightsMap {
    Fp8MatrixMap gate, up;      // [I, H]: operands of the forward, K along H
    Fp8MatrixMap down;          // [H, I]
    Fp8MatrixMap gate_t, up_t;  // [H, I]: operands of the input gradients
    Fp8MatrixMap down_t;        // [I, H]
    int64_t total;
};

MOK_HD inline Fp8MatrixMap take_fp8_matrix(BlockLayout& block, const Problem& p, int64_t outer,
                                           int64_t k) {
    const bool blocks = p.precision == Precision::Fp8Block;
    const int64_t experts = is_fp8(p) ? num_local_experts(p) : 0;
    const int64_t scale_rows = blocks ? ceil_div64(outer, kFp8Chunk) : round_up(outer, kFp8Chunk);
    Fp8MatrixMap map;
    map.outer = outer;
    map.padded_k = fp8_padded(k);
    map.expert_elements = outer * map.padded_k;
    map.expert_scales = scale_rows * fp8_scale_bytes(k);
    map.elements = block.take(experts, map.expert_elements, 1);
    map.scales = block.take(experts, map.expert_scales, 1);
    return map;
}

MOK_HD inline Fp8WeightsMap fp8_weights_map(const Problem& p) {
    const int64_t h = p.hidden, i = p.intermediate;
    BlockLayout block;
    Fp8WeightsMap map;
    map.gate = take_fp8_matrix(block, p, i, h);
    map.up = take_fp8_matrix(block, p, i, h);
    map.down = take_fp8_matrix(block, p, h, i);
    map.gate_t = take_fp8_matrix(block, p, h, i);
    map.up_t = take_fp8_matrix(block, p, h, i);
    map.down_t = take_fp8_matrix(block, p, i, h);
    map.total = block.end;
    return map;
}

// Mxfp8 on a GPU without block scales: the same weights as BF16 numbers, element times scale, [E_l,
// I, H] or [E_l, H, I] each, in memory of their own. The forward multiplies with those of gate, up
// and down, the input gradients with those of gate_t, up_t and down_t, which lie as gate, up and
// down do.
struct Mxfp8OperandsMap {
    struct Place {
        int64_t gate, up, down;
    };
    Place forward;      // blocks along H, H, I
    Place input_grads;  // blocks along I, I, H
    int64_t total;
};

MOK_HD inline Mxfp8OperandsMap mxfp8_operands_map(const Problem& p) {
    const bool used = p.precision == Precision::Mxfp8;
    const int64_t rows = used ? num_local_experts(p) * int64_t{p.intermediate} : 0;
    BlockLayout block;
    Mxfp8OperandsMap map;
    const auto take = [&](Mxfp8OperandsMap::Place& place) {
        place.gate = block.take(rows, p.hidden, kBytesBF16);
        place.up = block.take(rows, p.hidden, kBytesBF16);
        place.down = block.take(rows, p.hidden, kBytesBF16);
    };
    take(map.forward);
    take(map.input_grads);
    map.total = block.end;
    return map;
}

// ---- What a workspace on a GPU has beside its map ----------------------------------------------
// The route table's builder: where its buffers lie, in bytes from its scratch's start.
inline constexpr int32_t kMaxTableBlocks = 256;  // no GPU has more multiprocessors
inline constexpr int64_t kLocalRouteBytes = 8;
struct TableScratchMap {
    int64_t barrier;       // [1] u64
    int64_t block_bad;     // [kMaxTableBlocks] u64
    int64_t own_counts;    // [E_l] i32
    int64_t block_counts;  // [kMaxTableBlocks, E_l] i32
    int64_t routes;        // [R * max_tokens, K], kLocalRouteBytes each
    int64_t total;
};
MOK_HD inline TableScratchMap table_scratch_map(const Problem& p) {
    const int64_t experts = num_local_experts(p), tokens = int64_t{p.num_ranks} * p.max_tokens;
    BlockLayout block;
    TableScratchMap map;
    map.barrier = block.take(1, 1, 8);
    map.block_bad = block.take(kMaxTableBlocks, 1, 8);
    map.own_counts = block.take(1, experts, kBytesI32);
    map.block_counts = block.take(kMaxTableBlocks, experts, kBytesI32);
    map.routes = block.take(tokens, p.top_k, kLocalRouteBytes);
    map.total = block.end;
    return map;
}
// A backward in Fp8Block: operands of weight gradients in blocks along the slots; those of x lie in
// WorkspaceMap::x8. A tile of 128 rows has [columns][128] elements and a scale a column, which take
// the place that its rows would. And of what is quantised in units of its own a ticket for each
// kind, and for each kind what is done of every routed tile.
inline constexpr int32_t kQuantisedKinds = 3;
struct Fp8SlotsMap {
    Fp8RowsMap d_y;                     // [ring rows, H]
    Fp8RowsMap w_hidden, d_gate, d_up;  // [ring rows, I]
    int64_t counters;                   // [kQuantisedKinds, 1 + max_tiles] u32
    int64_t counter_bytes, total;
};
MOK_HD inline Fp8SlotsMap fp8_slots_map(const Problem& p) {
    const bool used = p.precision == Precision::Fp8Block;
    const int64_t rows = used ? ring_rows(p) : 0;
    BlockLayout block;
    Fp8SlotsMap map;
    map.d_y = take_fp8_rows(block, p, rows, p.hidden);
    map.w_hidden = take_fp8_rows(block, p, rows, p.intermediate);
    map.d_gate = take_fp8_rows(block, p, rows, p.intermediate);
    map.d_up = take_fp8_rows(block, p, rows, p.intermediate);
    map.counter_bytes = used ? kQuantisedKinds * (1 + int64_t{max_tiles(p)}) * kBytesI32 : 0;
    map.counters = block.take(1, map.counter_bytes, 1);
    map.total = block.end;
    return map;
}
// Tickets, times and the like of a pass.
inline constexpr int64_t kPassControlBytes = 40;
MOK_HD inline int64_t cuda_bytes(const Problem& p) {
    return table_scratch_map(p).total + fp8_slots_map(p).total + kPassControlBytes;
}

// ---- Route table ------------------------------------------------------------------------------
MOK_HD inline int64_t table_bytes(const Problem& p) {
    return route_table_ints(p) * kBytesI32;
}

}  // namespace mok::plan
