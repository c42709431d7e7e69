#pragma once

#include <cstdint>

#include "arch/block_scan.cuh"
#include "kernels/table_state.cuh"

namespace mok::kernels {

// What every thread of a block knows. Tokens are numbered through over the home ranks; warps take
// consecutive ranges of them in the order of (block, warp).
struct TableBlock {
    TableShared shared;
    const int32_t* first_token;  // [R + 1] of each home rank, in shared memory; the last: all
    const int32_t* const* ids;   // [R] in shared memory
    unsigned long long* bad;     // [1] in shared memory, see pack_bad
    int32_t experts;             // E_l
    int32_t warp_tokens;         // tokens of a warp's range

    __device__ int32_t num_warps() const {
        return static_cast<int32_t>(blockDim.x) / arch::kWarpSize;
    }
    __device__ int32_t block_tokens() const { return warp_tokens * num_warps(); }
    __device__ int32_t* counts_of_warp(int32_t warp) const {
        return shared.warp_counts + warp * experts;
    }
};

struct TokenRange {
    int32_t begin, end;
};
__device__ inline TokenRange tokens_of_warp(const TableArgs& args, const TableBlock& block) {
    const int32_t all = block.first_token[args.problem.num_ranks];
    const int32_t warp = static_cast<int32_t>(blockIdx.x) * block.num_warps() + arch::warp_idx();
    const int32_t begin = plan::min_of(all, warp * block.warp_tokens);
    return {begin, plan::min_of(all, begin + block.warp_tokens)};
}
__device__ inline LocalRoute* routes_of_warp(const TableArgs& args, const TokenRange& tokens) {
    return args.scratch.routes + int64_t{tokens.begin} * args.problem.top_k;
}

// The last home rank that begins before a token, 0 if none does.
__device__ inline int32_t last_home_before(const TableArgs& args, const TableBlock& block,
                                           int32_t token) {
    int32_t homes = 0;
    for (int32_t begin = 0; begin < args.problem.num_ranks; begin += arch::kWarpSize) {
        const int32_t h = begin + arch::lane_idx();
        const bool before = h < args.problem.num_ranks && block.first_token[h] < token;
        homes += __popc(__ballot_sync(arch::kWholeWarp, before));
    }
    return plan::max_of(0, homes - 1);
}

// Reads ids [begin, end) of a home rank and appends the routes to local experts, in order, to the
// `count` that the warp has found so far. Returns the new count.
__device__ inline int32_t take_routes(const TableArgs& args, const TableBlock& block, int32_t home,
                                      int32_t begin, int32_t end, LocalRoute* routes,
                                      int32_t count) {
    constexpr int32_t kLoads = 8;  // in flight per thread, for a peer's memory is far
    const plan::Problem& p = args.problem;
    const int32_t first = plan::first_expert(p, p.rank), past = first + block.experts;
    const int32_t* const ids = block.ids[home];
    int32_t* const counts = block.counts_of_warp(arch::warp_idx());
    for (int32_t at = begin; at < end; at += kLoads * arch::kWarpSize) {
        int32_t id[kLoads];
#pragma unroll
        for (int32_t k = 0; k < kLoads; ++k) {
            const int32_t route = at + k * arch::kWarpSize + arch::lane_idx();
            id[k] = route < end ? ids[route] : -1;
        }
#pragma unroll
        for (int32_t k = 0; k < kLoads; ++k) {
            if (at + k * arch::kWarpSize >= end) break;
            const int32_t route = at + k * arch::kWarpSize + arch::lane_idx();
            if (id[k] < -1 || id[k] >= p.num_experts) {
                atomicMin(block.bad, pack_bad(block.first_token[home] * p.top_k + route, id[k]));
            }
            const bool local = id[k] >= first && id[k] < past;
            const uint32_t locals = __ballot_sync(arch::kWholeWarp, local);
            if (local) {
                const int32_t e = id[k] - first;
                routes[count + __popc(locals & arch::lanes_before())] = {
                    route, static_cast<uint32_t>(home) << kExpertBits | static_cast<uint32_t>(e)};
                atomicAdd(counts + e, 1);  // a sum: no result depends on the order
            }
            count += __popc(locals);
        }
    }
    return count;
}

// Counts the routes of the warp's tokens to each local expert (warp_counts, zero before) and writes
// them to `routes` in global order. Where a home rank begins among these tokens, home_begin[.,
// home] becomes what the warp has counted before it. Returns the number of routes.
__device__ inline int32_t count_routes(const TableArgs& args, const TableBlock& block,
                                       const TokenRange& tokens, LocalRoute* routes) {
    const plan::Problem& p = args.problem;
    const int32_t* const counts = block.counts_of_warp(arch::warp_idx());
    int32_t count = 0;
    for (int32_t h = last_home_before(args, block, tokens.begin);
         h < p.num_ranks && block.first_token[h] < tokens.end; ++h) {
        const int32_t home_token = block.first_token[h];
        if (home_token >= tokens.begin) {
            __syncwarp();  // the counts of all lanes
            for (int32_t e = arch::lane_idx(); e < block.experts; e += arch::kWarpSize) {
                args.table.home_begin[e * (p.num_ranks + 1) + h] = counts[e];
            }
            __syncwarp();  // before they go on
        }
        const int32_t begin = plan::max_of(tokens.begin, home_token) - home_token;
        const int32_t end = plan::min_of(tokens.end, block.first_token[h + 1]) - home_token;
        count = take_routes(args, block, h, begin * p.top_k, end * p.top_k, routes, count);
    }
    return count;
}

// Turns warp_counts into the counts of the block's earlier warps and hands the block's own to the
// grid. All threads call it, after a barrier of the block behind count_routes.
__device__ inline void publish_counts(const TableArgs& args, const TableBlock& block) {
    const plan::Problem& p = args.problem;
    const int32_t block_idx = static_cast<int32_t>(blockIdx.x);
    const int32_t own_token = block.first_token[p.rank] - block_idx * block.block_tokens();
    const bool owns = own_token >= 0 && own_token < block.block_tokens() &&
                      block.first_token[p.rank] < block.first_token[p.num_ranks];
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < block.experts;
         e += static_cast<int32_t>(blockDim.x)) {
        int32_t sum = 0;
        for (int32_t w = 0; w < block.num_warps(); ++w) {
            int32_t& count = block.counts_of_warp(w)[e];
            const int32_t of_warp = count;
            count = sum;
            sum += of_warp;
        }
        args.scratch.block_counts[block_idx * block.experts + e] = sum;
        if (owns) {
            args.scratch.own_counts[e] = block.counts_of_warp(own_token / block.warp_tokens)[e] +
                                         args.table.home_begin[e * (p.num_ranks + 1) + p.rank];
        }
    }
    if (threadIdx.x == 0) args.scratch.block_bad[block_idx] = *block.bad;
}

// Sums the counts of all blocks into rows, before and own (zero before). All threads call it behind
// the grid's barrier; a barrier of the block must follow.
__device__ inline void add_counts(const TableArgs& args, const TableBlock& block) {
    const plan::Problem& p = args.problem;
    const TableShared& s = block.shared;
    const int32_t threads = static_cast<int32_t>(blockDim.x);
    const int32_t num_blocks = static_cast<int32_t>(gridDim.x);
    const int32_t block_idx = static_cast<int32_t>(blockIdx.x);
    const int32_t own_token = block.first_token[p.rank];
    const bool has_owner = own_token < block.first_token[p.num_ranks];
    const int32_t owner = has_owner ? own_token / block.block_tokens() : num_blocks;
    // Thread i: expert i mod E_l, every strides-th block from i / E_l on.
    const int32_t strides = plan::max_of(1, threads / plan::max_of(1, block.experts));
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < strides * block.experts; i += threads) {
        const int32_t e = i % block.experts;
        int32_t rows = 0, before = 0, own = 0;
        if (has_owner && i < block.experts) own = __ldcg(args.scratch.own_counts + e);
#pragma unroll 4
        for (int32_t b = i / block.experts; b < num_blocks; b += strides) {
            const int32_t count = __ldcg(args.scratch.block_counts + b * block.experts + e);
            rows += count;
            if (b < block_idx) before += count;
            if (b < owner) own += count;
        }
        // Sums: no result depends on the order.
        atomicAdd(s.rows + e, rows);
        atomicAdd(s.before + e, before);
        atomicAdd(s.own + e, own);
    }
}

}  // namespace mok::kernels
