#include "kernels/table_builder.h"

#include <algorithm>

#include "arch/block_scan.cuh"
#include "arch/grid_barrier.cuh"
#include "kernels/prepared_devices.h"
#include "kernels/table_count.cuh"
#include "kernels/table_place.cuh"
#include "kernels/table_state.cuh"

namespace mok::kernels {
namespace {

// The blocks are resident together and read at most one table's ids before they meet, so a wait of
// this length means that a read of a peer's memory does not return.
constexpr uint64_t kBarrierBoundNs = 10'000'000'000;

// Counts of tokens and addresses of ids, into shared memory. False (for the whole block) where a
// count is out of range. All threads; ends with a barrier of the block.
__device__ bool read_homes(const TableArgs& args, int32_t* first_token, const int32_t** ids,
                           int32_t* warp_sums) {
    const plan::Problem& p = args.problem;
    bool in_range = true;
    const auto tokens = [&](int32_t h) {
        ids[h] = args.inputs.ids[h];
        const int32_t count = *args.inputs.num_tokens[h];
        in_range = in_range && count >= 0 && count <= p.max_tokens;
        return count;
    };
    const auto put = [&](int32_t h, int32_t before) { first_token[h] = before; };
    const int32_t all = arch::scan_over_block(p.num_ranks, warp_sums, tokens, put);
    if (threadIdx.x == 0) first_token[p.num_ranks] = all;
    return __syncthreads_and(in_range);
}

// Whether this thread's share of the blocks found a bad id.
__device__ bool found_bad_id(const TableArgs& args) {
    bool found = false;
    for (uint32_t b = threadIdx.x; b < gridDim.x; b += blockDim.x) {
        found = found || __ldcg(args.scratch.block_bad + b) != kNoBadId;
    }
    return found;
}

// Keeps the first report. One thread's work.
__device__ void report(const TableArgs& args, const TableReport& what) {
    const volatile TableReport& kept = *args.report;
    if (kept.fault == TableFault::None && !kept.bad.found) *args.report = what;
}

// The first bad id of all blocks. One block's work, all its threads.
__device__ void report_bad_id(const TableArgs& args, const TableBlock& block) {
    const plan::Problem& p = args.problem;
    for (uint32_t b = threadIdx.x; b < gridDim.x; b += blockDim.x) {
        atomicMin(block.bad, static_cast<unsigned long long>(__ldcg(args.scratch.block_bad + b)));
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    const int32_t at = static_cast<int32_t>(*block.bad >> 32);
    int32_t home = 0;
    while (block.first_token[home + 1] * p.top_k <= at) ++home;
    const int32_t route = at - block.first_token[home] * p.top_k;
    report(args, {TableFault::None,
                  {true, home, route / p.top_k, route % p.top_k,
                   static_cast<int32_t>(static_cast<uint32_t>(*block.bad))}});
}

// A fault stops every block, so the first one alone reports it and leaves an empty table.
__device__ void report_fault(const TableArgs& args, TableFault fault) {
    if (blockIdx.x != 0) return;
    write_no_routes(args);
    if (threadIdx.x != 0) return;
    TableReport what{fault, {false, 0, 0, 0, 0}};
    for (int32_t h = args.problem.num_ranks - 1; h >= 0 && fault == TableFault::NumTokens; --h) {
        const int32_t count = *args.inputs.num_tokens[h];
        if (count < 0 || count > args.problem.max_tokens) what.bad = {false, h, 0, 0, count};
    }
    report(args, what);
}

__global__ void __launch_bounds__(kMaxTableWarps* arch::kWarpSize, 1)
    build_table(const __grid_constant__ TableArgs args) {
    extern __shared__ int32_t memory[];
    __shared__ int32_t first_token[plan::kMaxRanks + 1];
    __shared__ const int32_t* ids[plan::kMaxRanks];
    __shared__ int32_t warp_sums[kMaxTableWarps];
    __shared__ unsigned long long bad;

    const plan::Problem& p = args.problem;
    const int32_t thread = static_cast<int32_t>(threadIdx.x);
    const int32_t threads = static_cast<int32_t>(blockDim.x);
    const int32_t num_warps = threads / arch::kWarpSize;
    const int32_t block_idx = static_cast<int32_t>(blockIdx.x);
    const int32_t num_blocks = static_cast<int32_t>(gridDim.x);
    const int32_t experts = plan::num_local_experts(p);
    const TableShared s = table_shared_at(memory, experts, num_warps);

    // ---- 1. Every block learns whose tokens it counts -----------------------------------------
    for (int32_t e = thread; e < experts; e += threads) s.rows[e] = s.before[e] = s.own[e] = 0;
    for (int32_t i = thread; i < num_warps * experts; i += threads) s.warp_counts[i] = 0;
    if (thread == 0) bad = kNoBadId;
    if (!read_homes(args, first_token, ids, warp_sums)) {
        report_fault(args, TableFault::NumTokens);
        return;
    }
    const int32_t all_tokens = first_token[p.num_ranks];
    const TableBlock block{
        s,    first_token, ids,
        &bad, experts,     plan::max_of(1, plan::ceil_div(all_tokens, num_blocks * num_warps))};

    // ---- 2. Counts: warps -> block -> grid ----------------------------------------------------
    const TokenRange tokens = tokens_of_warp(args, block);
    LocalRoute* const routes = routes_of_warp(args, tokens);
    const int32_t num_routes = count_routes(args, block, tokens, routes);
    __syncthreads();  // warp_counts, bad and home_begin: each warp -> the block
    publish_counts(args, block);
    __syncthreads();  // block_counts, own_counts, block_bad: the block -> the thread that releases
    bool met = true;
    if (thread == 0) met = arch::meet_all_blocks(args.scratch.barrier, num_blocks, kBarrierBoundNs);
    if (!__syncthreads_and(met)) {
        report_fault(args, TableFault::Barrier);
        return;
    }

    // ---- 3. Segments, by every block for itself -----------------------------------------------
    const bool bad_id = found_bad_id(args);
    add_counts(args, block);
    if (__syncthreads_or(bad_id)) {  // rows, before, own: each thread -> the block
        if (block_idx == 0) {
            write_no_routes(args);
            report_bad_id(args, block);
        }
        return;
    }
    const int32_t num_slots = arch::scan_over_block(
        experts, warp_sums, [&](int32_t e) { return plan::padded_rows(s.rows[e]); },
        [&](int32_t e, int32_t before) { s.segment_begin[e] = before; });
    if (thread == 0) s.segment_begin[experts] = num_slots;
    finish_home_begin(args, block);
    __syncthreads();  // segment_begin; warp_counts were read before place_routes moves them on

    // ---- 4. The table -------------------------------------------------------------------------
    place_routes(args, block, routes, num_routes);
    for (int32_t e = num_blocks - 1 - block_idx; e < experts; e += num_blocks) {
        write_tiles(args, block, e);
    }
    if (block_idx == num_blocks - 1) write_pieces(args, block, warp_sums);
    if (block_idx == 0) write_segments(args, block);
}

TableScratch table_scratch_at(const plan::Problem& p, void* memory) {
    const plan::TableScratchMap map = plan::table_scratch_map(p);
    char* const base = static_cast<char*>(memory);
    return {reinterpret_cast<uint64_t*>(base + map.barrier),
            reinterpret_cast<uint64_t*>(base + map.block_bad),
            reinterpret_cast<int32_t*>(base + map.block_counts),
            reinterpret_cast<int32_t*>(base + map.own_counts),
            reinterpret_cast<LocalRoute*>(base + map.routes)};
}

// Warps of a block, so many that their counts fit its shared memory; 0 where one warp's do not.
int32_t warps_that_fit(int64_t experts, int64_t shared_bytes) {
    int32_t warps = kMaxTableWarps;
    while (warps > 0 && table_shared_bytes(experts, warps) > shared_bytes) warps /= 2;
    return warps;
}

// What a device has for the kernel.
struct TableLimits {
    int processors = 0;
    int64_t shared_bytes = 0;  // of a block, dynamic
};

// Finds the limits of the current device, and lets the kernel use them.
cudaError_t prepare_table_kernel(int device, TableLimits& limits) {
    int shared_limit = 0;
    cudaFuncAttributes kernel{};
    for (const cudaError_t error :
         {cudaDeviceGetAttribute(&limits.processors, cudaDevAttrMultiProcessorCount, device),
          cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          cudaFuncGetAttributes(&kernel, build_table)}) {
        if (error != cudaSuccess) return error;
    }
    limits.shared_bytes = shared_limit - static_cast<int64_t>(kernel.sharedSizeBytes);
    return cudaFuncSetAttribute(build_table, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(limits.shared_bytes));
}

}  // namespace

int64_t table_scratch_bytes(const plan::Problem& p) {
    return plan::table_scratch_map(p).total;
}

cudaError_t launch_build_table(const plan::Problem& p, const TableInputs& inputs,
                               const TableOutputs& outputs, void* scratch, int max_blocks,
                               cudaStream_t stream) {
    static PreparedDevices<TableLimits> prepared;
    TableLimits limits;
    const cudaError_t error = prepared.find(prepare_table_kernel, limits);
    if (error != cudaSuccess) return error;
    const int64_t experts = plan::num_local_experts(p);
    const int32_t warps = warps_that_fit(experts, limits.shared_bytes);
    if (max_blocks < 1 || warps == 0 || p.num_ranks < 1 || p.num_ranks > plan::kMaxRanks ||
        p.top_k < 1 || p.top_k > plan::kMaxTopK) {
        return cudaErrorInvalidValue;
    }
    // At least a token for each warp.
    const int64_t most_tokens = int64_t{p.num_ranks} * p.max_tokens;
    const int64_t useful = std::max<int64_t>(1, plan::ceil_div64(most_tokens, warps));
    const int64_t blocks =
        std::min<int64_t>({max_blocks, limits.processors, kMaxTableBlocks, useful});

    const TableArgs args{p,
                         inputs,
                         outputs.table,
                         outputs.expert_rows,
                         outputs.report,
                         table_scratch_at(p, scratch)};
    const int64_t shared_bytes = table_shared_bytes(experts, warps);

    cudaLaunchAttribute cooperative{};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(warps * arch::kWarpSize));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = &cooperative;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, build_table, args);
}

}  // namespace mok::kernels
