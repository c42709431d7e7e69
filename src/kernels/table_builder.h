#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "plan/problem.h"
#include "plan/route_table.h"

namespace mok::kernels {

// Builds plan's route table on the GPU: the same bytes as plan::build_route_table wherever that
// writes, in one launch, for any routing, without the host.

// What the table is built from: device arrays of R pointers that the device can read (a peer's
// memory included). ids[h] is home rank h's [num_tokens, K] i32, -1: no expert; each id is read
// once. num_tokens[h] is its count, [1] i32.
struct TableInputs {
    const int32_t* const* ids;
    const int32_t* const* num_tokens;
};

enum class TableFault : int32_t {
    None,
    NumTokens,  // a count of tokens lies outside [0, max_tokens]
    Barrier,    // the blocks did not meet in time; the scratch must be zeroed before its next use
};

// The first thing that went wrong since the host set it to {None, {}}; a launch that builds its
// table leaves it alone. bad.found: an id out of range, the first in global order. NumTokens: bad
// holds the home rank and, as its id, the count. The table that a launch leaves together with a
// report has no slots, no tiles and no pieces, so that every pass over it does nothing.
struct TableReport {
    TableFault fault;
    plan::BadId bad;
};

// What a launch writes. expert_rows: [E_l], the rows of each local expert once more, or null.
struct TableOutputs {
    plan::RouteTable table;
    int32_t* expert_rows;
    TableReport* report;
};

// Device memory that a launch works in, aligned to 256 bytes: zeroed once when it is allocated,
// then ready for any number of launches, one at a time, of problems that need at most as much.
// About 8 bytes for each route of R * max_tokens * K.
int64_t table_scratch_bytes(const plan::Problem& p);

// Launches on `stream` (also into a graph's capture) at most max_blocks thread blocks, at most one
// a multiprocessor, that must all be resident at once: the launch is cooperative. Any number gives
// the same table. cudaErrorInvalidValue: max_blocks below 1, R or K out of plan's range, or more
// local experts than a block's shared memory can count (over 10000).
cudaError_t launch_build_table(const plan::Problem& p, const TableInputs& inputs,
                               const TableOutputs& outputs, void* scratch, int max_blocks,
                               cudaStream_t stream);

}  // namespace mok::kernels
