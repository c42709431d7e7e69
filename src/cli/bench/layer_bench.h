#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "openmok/shape.h"

namespace mok::cli {

// One shape to be timed: routed experts only, balanced random routing.
struct BenchRequest {
    std::string name;
    LayerShape shape;
    int64_t tokens_per_rank = 512;
    int num_ranks = 1;    // threads of this process
    int num_workers = 1;  // threads of each rank
    bool backward = false;
    int iterations = 10;
};

// Milliseconds of one pass and, in turn with it (A B A B ...), of the library's products alone.
struct PassTimes {
    std::vector<double> layer_ms;    // of an iteration, the largest over the ranks
    std::vector<double> library_ms;  // all ranks' products on as many threads
    std::string digest;              // SHA-256 of what the pass computed
    int64_t link_bytes = 0;          // over all links, in one pass
};

struct BenchResult {
    PassTimes forward;             // from the ids to the output; it keeps the context
    PassTimes backward;            // empty without one
    std::vector<double> table_ms;  // the part of the forward that makes the route table
    int64_t workspace_bytes = 0, context_bytes = 0;  // of all ranks
};

// Throws ShapeError for a shape that the layer or this machine's memory cannot take.
BenchResult bench_layer(const BenchRequest& request);

}  // namespace mok::cli
