#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mok::cli {

// The part of a benchmark's record that pictures need (gpu_record.h writes them).
struct RecordedPass {
    std::string device;
    std::string pass, shape, routing;
    int64_t ranks = 0, tokens_per_rank = 0, hidden = 0, intermediate = 0;
    double median_ms = 0.0;
    std::optional<std::string> peer;
    std::optional<double> peer_median_ms;
    std::optional<int64_t> minibatch_rows, max_sms;
    std::optional<int64_t> workspace_bytes, context_bytes, peak_bytes;
};

// All records of all files, in order. Throws FileError where a file cannot be read or is no such
// JSON, or where a field is not what a layer can have, naming file, record and field.
std::vector<RecordedPass> read_records(const std::vector<std::filesystem::path>& files);

// The Zipf exponent of a routing's text; "balanced" is 0. Absent for a routing that has none.
std::optional<double> skew_of(const std::string& routing);

}  // namespace mok::cli
