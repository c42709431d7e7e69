#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cpu/fp8_rows.h"
#include "math/bf16.h"
#include "openmok/activation.h"
#include "openmok/operands.h"
#include "plan/memory_map.h"
#include "plan/program.h"
#include "plan/signals.h"

namespace mok::cpu {

// What one rank publishes: its peers read x, d_y and the router weights, and write the rest.
struct Window {
    Bf16* x;                // [T_max, H]
    Bf16* d_y;              // [T_max, H]
    float* topk_weights;    // [T_max, K]
    Bf16* combine;          // [T_max * K, H]  y, in the backward d_x, of every route
    float* d_topk_weights;  // [T_max, K]
    Fp8Row x8;              // [T_max, H] in FP8, where the dispatch pulls that: token 0's row
};

// Rows by ring row (B of them) in the workspace, by slot (below C) in the context.
struct RowMemory {
    Bf16* x;                 // [rows, H]
    Bf16* d_y;               // [rows, H]
    Bf16 *gate, *up;         // [rows, I]
    Bf16* w_hidden;          // [rows, I]  w * hidden; in the forward hidden
    Bf16 *d_gate, *d_up;     // [rows, I]
    Bf16* out;               // [rows, H]  y or d_x; ring only
    float* row_weights;      // [rows]  w
    float* router_partials;  // [rows, gate_up_parts + 1]; ring only
    // FP8: rows of which plan::Fp8RowsMap says where they lie. gate8 and up8 are ring and context,
    // the others ring only.
    Fp8Row x8, d_y8;        // [rows, H]
    Fp8Row gate8, up8;      // [rows, I]
    Fp8Row d_gate8, d_up8;  // [rows, I]  d_gate8 in the forward: hidden
};

// Rows of the shared expert, by token.
struct SharedMemory {
    Bf16 *gate, *up;         // [T, S]  context
    Bf16* w_hidden;          // [T, S]  like RowMemory's; d_gate, d_up too
    Bf16 *d_gate, *d_up;     // [T, S]
    Bf16* out;               // [T, H]
    float* router_partials;  // [T, gate_up_parts + 1]
    const float* weights;    // [T], all ones where the caller gave none
};

struct LinkCounters {
    std::atomic<int64_t> pulled[plan::kMaxRanks];
    std::atomic<int64_t> pushed[plan::kMaxRanks];
};

// Everything that the tasks of one rank's pass read and write.
struct RankPass {
    plan::Pass pass;
    Activation activation;
    bool saves_context;  // forward passes: gate, up (and x) below C are written to the context
    Weights weights;
    WeightGrads grads;
    const Window* windows;  // [R]
    RowMemory ring;
    RowMemory kept;
    SharedMemory shared;
    const std::byte* fp8_weights;  // FP8: of this rank's experts, by plan::fp8_weights_map
    float* wgrad_scratch;  // one expert's partial sums: d_gate, d_up, d_down, then the biases'
    LinkCounters* counters;

    const plan::Problem& problem() const { return pass.problem; }
    const plan::RouteTable& table() const { return pass.table; }
    const Window& own_window() const { return windows[pass.problem.rank]; }
};

enum class Rows { X, DY, Gate, Up, WHidden, DGate, DUp, Out };

// The rows of a tile in memory.
struct TileRows {
    Bf16* at;      // row 0
    int64_t cols;  // their width and distance in elements
    int64_t num;   // real rows, 0..128: the rows after them are never read or written
};
TileRows tile_rows(const RankPass& d, Rows rows, int32_t tile);

// Whether a tile's products are of FP8: those of the routed experts, if the layer's precision is.
inline bool is_fp8_tile(const RankPass& d, int32_t tile) {
    return plan::is_fp8(d.problem()) && !plan::is_shared_tile(d.problem(), tile);
}
enum class Rows8 { X, DY, Gate, Up, Hidden, DGate, DUp };
Fp8Tile fp8_tile(const RankPass& d, Rows8 rows, int32_t tile);

// Router weights of a tile's rows, and the partial sums of their router gradients: row r's at
// r * (gate_up_parts + 1).
const float* tile_row_weights(const RankPass& d, int32_t tile);
float* tile_router_partials(const RankPass& d, int32_t tile);

// Memory of one slot's rows that dispatch writes.
Bf16* slot_row(const RankPass& d, Rows rows, int32_t slot);
float* slot_weight(const RankPass& d, int32_t slot);

// One function per task kind does its task; run_task chooses it.
void run_task(const RankPass& d, const plan::Task& task);

}  // namespace mok::cpu
