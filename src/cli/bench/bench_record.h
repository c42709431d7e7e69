#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench/layer_bench.h"

namespace mok::cli {

struct Spread {
    double median = 0.0, min = 0.0, max = 0.0;
};
Spread spread_of(std::vector<double> values);  // not empty

// What a record says about its own making, as this program finds it out.
struct RunIdentity {
    std::string command;  // the words of this process
    std::string commit;   // of the build
    std::string date;     // now, UTC, e.g. 2026-01-31T12:00:00Z
};
RunIdentity run_identity();

// What one pass of one shape took, as the table and the record show it.
struct PassRecord {
    BenchRequest request;
    bool backward = false;
    Spread layer, library, table;  // ms
    double gflops = 0.0;           // of the layer, by its median
    double library_gflops = 0.0;
    int64_t link_bytes = 0, workspace_bytes = 0, context_bytes = 0;
    std::string digest;

    double ratio() const { return layer.median / library.median; }
    double min_ratio() const { return layer.min / library.min; }
};

// One record for the forward and, where it was run, one for the backward. Floating-point operations
// of the routed rows: forward 6 T K H I over all ranks, backward twice that.
std::vector<PassRecord> records_of(const BenchRequest& request, const BenchResult& result);

std::string bench_table(const std::vector<PassRecord>& records);

// {"command", "commit", "device", "date", ..., "records": [...]}; command, commit, processor and
// date are found out by the program itself.
nlohmann::ordered_json bench_json(const std::vector<PassRecord>& records);

}  // namespace mok::cli
