#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/bench_record.h"
#include "cli/bench/timed_layer.h"

namespace mok::cli {

// What one pass of one case took on a GPU, beside its peers.
struct GpuRecord {
    std::string shape_name;
    LayerShape shape;
    int num_ranks = 1;
    int64_t tokens_per_rank = 0;
    std::string routing;
    BenchPass pass = BenchPass::Forward;
    int iterations = 0;
    Spread layer;                          // ms
    std::optional<std::string> peer;       // the fastest of the peers that ran
    std::optional<double> peer_median_ms;  // of the same pass
    // Of that peer's own allocator, above what was there before the pass, on the rank that has
    // most: the peak, a backward's with its forward, and what a forward keeps besides its output.
    std::optional<int64_t> peer_peak_bytes, peer_saved_bytes;
    std::optional<double> gemm_only_ms;   // medians; balanced
    std::optional<double> own_counts_ms;  // with the run's own rows of each expert
    std::optional<double> table_ms;       // median; forwards only
    PassFacts facts;

    // Floating-point operations of the routed rows of all ranks, forward 6 T K H I, backward twice
    // that, over the layer's median.
    double tflops() const;
};

// What is the same for all records of a run.
struct GpuRun {
    LayerDevice device;
    bool is_virtual = false;  // several ranks share a GPU
    std::optional<std::string> driver, nccl, torch;
    std::optional<double> sm_clock_mhz, power_w;  // medians over the timed rounds
};

// A value that was not measured is null.
nlohmann::ordered_json gpu_bench_json(const GpuRun& run, const std::vector<GpuRecord>& records);

// Ratios: the products alone over the layer, and the peer over the layer.
std::string gpu_bench_table(const GpuRun& run, const std::vector<GpuRecord>& records);

}  // namespace mok::cli
