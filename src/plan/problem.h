#pragma once

#include <cstdint>

#include "math/host_device.h"
#include "openmok/precision.h"

namespace mok::plan {

// Tile shapes. A row tile is 128 slots in every task; the widths are columns of the task's output.
inline constexpr int32_t kTileRows = 128;
inline constexpr int32_t kGateUpCols = 128;     // of gate and of up each: 256 columns of weights
inline constexpr int32_t kOutCols = 256;        // of y and of d_x
inline constexpr int32_t kDownDgradCols = 256;  // of d_hidden
inline constexpr int32_t kWgradRows = 128;      // of a weight gradient
inline constexpr int32_t kWgradCols = 256;
inline constexpr int32_t kCommRows = 8;  // of a tile: what one communication task moves
inline constexpr int32_t kCommParts = kTileRows / kCommRows;
inline constexpr int32_t kMaxRanks = 72;
inline constexpr int32_t kMaxTopK = 128;

MOK_HD constexpr int32_t ceil_div(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}
MOK_HD constexpr int64_t ceil_div64(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
MOK_HD constexpr int64_t round_up(int64_t a, int64_t b) {
    return ceil_div64(a, b) * b;
}
MOK_HD constexpr int32_t min_of(int32_t a, int32_t b) {
    return a < b ? a : b;
}
MOK_HD constexpr int32_t max_of(int32_t a, int32_t b) {
    return a > b ? a : b;
}

// What every rank of a group agrees on before a pass, plus this rank's own place in it. All counts
// of routed rows live in the RouteTable, on the device.
struct Problem {
    int32_t num_ranks;            // R, 1..72
    int32_t rank;                 // this rank
    int32_t hidden;               // H
    int32_t intermediate;         // I
    int32_t num_experts;          // E, over all ranks
    int32_t top_k;                // K
    int32_t shared_intermediate;  // S, 0: no shared expert
    int32_t max_tokens;           // of any rank in any call; sizes every table
    int32_t num_tokens;           // of this rank in this call
    int32_t minibatch_rows;       // b, a multiple of 128
    int32_t macrobatch_rows;      // B, ring rows, a multiple of 128
    int32_t context_rows;         // C, a multiple of 128: slots below C are kept in the context
    bool keep_x;                  // the context keeps what is pulled: x, and d_y until wgrad
    bool fp8_dispatch;            // FP8: a forward that keeps no x pulls it in FP8
    Precision precision;          // of the routed experts
};

MOK_HD inline bool is_fp8(const Problem& p) {
    return p.precision != Precision::BF16;
}

// Experts of a rank: E / R, the first E mod R ranks one more. A rank may own none.
MOK_HD inline int32_t first_expert(int32_t num_experts, int32_t num_ranks, int32_t rank) {
    const int32_t base = num_experts / num_ranks, more = num_experts % num_ranks;
    return rank * base + min_of(rank, more);
}
MOK_HD inline int32_t first_expert(const Problem& p, int32_t rank) {
    return first_expert(p.num_experts, p.num_ranks, rank);
}
MOK_HD inline int32_t num_local_experts(const Problem& p) {
    return first_expert(p, p.rank + 1) - first_expert(p, p.rank);
}

// The rank that owns an expert: the inverse of first_expert.
MOK_HD inline int32_t expert_rank(const Problem& p, int32_t expert) {
    const int32_t base = p.num_experts / p.num_ranks, more = p.num_experts % p.num_ranks;
    const int32_t large = more * (base + 1);
    return expert < large ? expert / (base + 1) : more + (expert - large) / base;
}

// Worst cases: every route of every rank on this rank, each segment padded to a whole tile.
MOK_HD inline int64_t max_slots(const Problem& p) {
    const int64_t experts = num_local_experts(p);
    if (experts == 0) return 0;
    const int64_t routes = int64_t{p.num_ranks} * p.max_tokens * p.top_k;
    const int64_t padded = routes + experts * (kTileRows - 1);
    return padded / kTileRows * kTileRows;
}
MOK_HD inline int32_t max_tiles(const Problem& p) {
    return static_cast<int32_t>(max_slots(p) / kTileRows);
}
MOK_HD inline int32_t max_macrobatches(const Problem& p) {
    return max_of(1, static_cast<int32_t>(ceil_div64(max_slots(p), p.macrobatch_rows)));
}
MOK_HD inline int32_t max_shared_tiles(const Problem& p) {
    return p.shared_intermediate > 0 ? ceil_div(p.max_tokens, kTileRows) : 0;
}
MOK_HD inline int32_t shared_tiles(const Problem& p) {
    return p.shared_intermediate > 0 ? ceil_div(p.num_tokens, kTileRows) : 0;
}

// Tiles are numbered through: routed tiles are slots / 128, the shared expert's follow the last
// possible routed tile.
MOK_HD inline bool is_shared_tile(const Problem& p, int32_t tile) {
    return tile >= max_tiles(p);
}

// Width of the expert that a tile belongs to, and the number of its column tiles per task kind.
MOK_HD inline int32_t width_of(const Problem& p, bool shared) {
    return shared ? p.shared_intermediate : p.intermediate;
}
MOK_HD inline int32_t gate_up_parts(const Problem& p, bool shared) {
    return ceil_div(width_of(p, shared), kGateUpCols);
}
MOK_HD inline int32_t down_dgrad_parts(const Problem& p, bool shared) {
    return ceil_div(width_of(p, shared), kDownDgradCols);
}
MOK_HD inline int32_t out_parts(const Problem& p) {
    return ceil_div(p.hidden, kOutCols);
}

// Tiles of one expert's three weight gradients: d_gate [I,H], d_up [I,H], d_down [H,I].
MOK_HD inline int32_t gate_wgrad_parts(const Problem& p, bool shared) {
    return ceil_div(width_of(p, shared), kWgradRows) * ceil_div(p.hidden, kWgradCols);
}
MOK_HD inline int32_t down_wgrad_parts(const Problem& p, bool shared) {
    return ceil_div(p.hidden, kWgradRows) * ceil_div(width_of(p, shared), kWgradCols);
}
MOK_HD inline int32_t wgrad_parts(const Problem& p, bool shared) {
    return 2 * gate_wgrad_parts(p, shared) + down_wgrad_parts(p, shared);
}

}  // namespace mok::plan
