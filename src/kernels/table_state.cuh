#pragma once

#include <cstdint>

#include "kernels/table_builder.h"
#include "plan/memory_map.h"
#include "plan/route_table_inl.h"

namespace mok::kernels {

using plan::kMaxTableBlocks;
inline constexpr int32_t kMaxTableWarps = 16;

// ---- Global memory ----------------------------------------------------------------------------
// A route to a local expert, as the count leaves it for the placement.
struct LocalRoute {
    int32_t route;         // token * K + choice at home
    uint32_t home_expert;  // home rank << 24 | local expert
};
inline constexpr int32_t kExpertBits = 24;
static_assert(sizeof(LocalRoute) == plan::kLocalRouteBytes);

struct TableScratch {
    uint64_t* barrier;      // [1] arch/grid_barrier.cuh
    uint64_t* block_bad;    // [blocks] first bad id of each block's tokens, see pack_bad
    int32_t* block_counts;  // [blocks, E_l] routes of each block's tokens to each expert
    int32_t* own_counts;    // [E_l] of the block where this rank's tokens begin: routes before them
    LocalRoute* routes;     // [R * max_tokens * K] a warp's begin where its tokens' routes would
};

struct TableArgs {
    plan::Problem problem;
    TableInputs inputs;
    plan::RouteTable table;
    int32_t* expert_rows;
    TableReport* report;
    TableScratch scratch;
};

// A bad id behind its place in global order (token * K + choice over all homes), so that the
// smallest word is the first bad id.
inline constexpr uint64_t kNoBadId = ~uint64_t{0};
MOK_HD inline uint64_t pack_bad(int32_t global_route, int32_t id) {
    return static_cast<uint64_t>(global_route) << 32 | static_cast<uint32_t>(id);
}

// ---- Shared memory ----------------------------------------------------------------------------
// A warp links the routes of whole tokens, this many at a time.
inline constexpr int32_t kWindow = plan::kMaxTopK;
inline constexpr int32_t kAlone = -1;  // in place of a token: forms no pull groups

// Dynamic shared memory, all 4-byte elements: per expert, then per warp.
struct TableShared {
    int32_t* rows;            // [E_l] routes in all
    int32_t* before;          // [E_l] routes of earlier blocks
    int32_t* own;             // [E_l] routes of earlier home ranks than this one
    int32_t* segment_begin;   // [E_l + 1]
    int32_t* warp_counts;     // [warps, E_l] a warp's routes, then those of the block's earlier
                              // warps, then of these and what the warp has placed itself
    plan::PullPlace* places;  // [warps, kWindow]
    int32_t* tokens;          // [warps, kWindow] which token a place is of, global, or kAlone
};

MOK_HD inline int64_t table_shared_bytes(int64_t experts, int64_t num_warps) {
    const int64_t window_bytes = kWindow * (sizeof(plan::PullPlace) + sizeof(int32_t));
    return (4 * experts + 1) * sizeof(int32_t) +
           num_warps * (experts * sizeof(int32_t) + window_bytes);
}

MOK_HD inline TableShared table_shared_at(int32_t* memory, int32_t experts, int32_t num_warps) {
    TableShared s;
    s.rows = memory;
    s.before = s.rows + experts;
    s.own = s.before + experts;
    s.segment_begin = s.own + experts;
    s.warp_counts = s.segment_begin + experts + 1;
    s.tokens = s.warp_counts + num_warps * experts;
    s.places = reinterpret_cast<plan::PullPlace*>(s.tokens + num_warps * kWindow);
    return s;
}

}  // namespace mok::kernels
