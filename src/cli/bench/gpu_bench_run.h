#pragma once

#include "cli/bench/bench_options.h"
#include "cli/bench/timed_layer.h"

namespace mok::cli {

// `mok bench` on a GPU: times every case of the options with this layer, prints notes and the
// table, and writes the record where the options ask for it. The record holds what is complete.
void run_gpu_bench(const BenchOptions& o, TimedLayer& layer);

}  // namespace mok::cli
