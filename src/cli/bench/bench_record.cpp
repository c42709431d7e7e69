#include "cli/bench/bench_record.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <thread>

#include "cli/doctor/machine.h"
#include "cli/version.h"

namespace mok::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string library_name() {
    return fmt::format("Eigen {}.{}.{} FP32", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION,
                       EIGEN_MINOR_VERSION);
}

// The command line of this process, words with spaces in quotes.
std::string command_line() {
    std::ifstream file("/proc/self/cmdline");
    const std::string all{std::istreambuf_iterator<char>(file), {}};
    std::string text;
    for (size_t begin = 0; begin < all.size();) {
        const size_t end = std::min(all.find('\0', begin), all.size());
        const std::string word = all.substr(begin, end - begin);
        const bool plain = !word.empty() && word.find(' ') == std::string::npos;
        text += fmt::format("{0}{1}{2}{1}", begin > 0 ? " " : "", plain ? "" : "'", word);
        begin = end + 1;
    }
    return text;
}

Json record_json(const PassRecord& r) {
    const LayerShape& s = r.request.shape;
    Json json = {{"pass", r.backward ? "backward" : "forward"},
                 {"shape", r.request.name},
                 {"ranks", r.request.num_ranks},
                 {"threads_per_rank", r.request.num_workers},
                 {"tokens_per_rank", r.request.tokens_per_rank},
                 {"hidden", s.hidden},
                 {"intermediate", s.intermediate},
                 {"experts", s.num_experts},
                 {"top_k", s.top_k},
                 {"routing", "balanced-random"},
                 {"precision", precision_name(s.precision)},
                 {"backend", "cpu"},
                 {"iterations", r.request.iterations},
                 {"median_ms", r.layer.median},
                 {"min_ms", r.layer.min},
                 {"max_ms", r.layer.max},
                 {"tflops", r.gflops / 1e3},
                 {"gemm_only", library_name()},
                 {"gemm_only_own_counts_ms", r.library.median},
                 {"gemm_only_own_counts_min_ms", r.library.min},
                 {"ratio", r.ratio()},
                 {"min_ratio", r.min_ratio()}};
    if (!r.backward) json["table_ms"] = r.table.median;
    json["workspace_bytes"] = r.workspace_bytes;
    json["context_bytes"] = r.context_bytes;
    json["link_bytes"] = r.link_bytes;
    json["digest"] = r.digest;
    return json;
}

}  // namespace

RunIdentity run_identity() {
    return {command_line(), kCommit,
            fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))};
}

Spread spread_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size();
    return {(values[(n - 1) / 2] + values[n / 2]) / 2, values.front(), values.back()};
}

std::vector<PassRecord> records_of(const BenchRequest& request, const BenchResult& result) {
    const LayerShape& s = request.shape;
    const double forward_flops = 6.0 * static_cast<double>(request.tokens_per_rank) *
                                 request.num_ranks * static_cast<double>(s.top_k) *
                                 static_cast<double>(s.hidden) *
                                 static_cast<double>(s.intermediate);
    std::vector<PassRecord> records;
    for (const bool backward : {false, true}) {
        const PassTimes& times = backward ? result.backward : result.forward;
        if (times.layer_ms.empty()) continue;
        PassRecord r;
        r.request = request;
        r.backward = backward;
        r.layer = spread_of(times.layer_ms);
        r.library = spread_of(times.library_ms);
        r.table = spread_of(result.table_ms);
        const double flops = (backward ? 2.0 : 1.0) * forward_flops;
        r.gflops = flops / r.layer.median * 1e-6;
        r.library_gflops = flops / r.library.median * 1e-6;
        r.link_bytes = times.link_bytes;
        r.workspace_bytes = result.workspace_bytes;
        r.context_bytes = result.context_bytes;
        r.digest = times.digest;
        records.push_back(r);
    }
    return records;
}

std::string bench_table(const std::vector<PassRecord>& records) {
    const std::string device = processor_facts()["model"];
    std::string text = fmt::format(
        "{}, {} cores; the library is {}, its products of exactly the routed rows\n\n"
        "{:<18}{:<10}{:>7}{:>7}{:>11}{:>10}{:>10}{:>9}{:>12}{:>10}{:>9}{:>8}\n",
        device, std::thread::hardware_concurrency(), library_name(), "shape", "pass", "ranks",
        "tokens", "median ms", "min ms", "max ms", "GFLOP/s", "library ms", "min ms", "GFLOP/s",
        "ratio");
    for (const PassRecord& r : records) {
        text += fmt::format(
            "{:<18}{:<10}{:>7}{:>7}{:>11.2f}{:>10.2f}{:>10.2f}{:>9.1f}{:>12.2f}{:>10.2f}{:>9.1f}"
            "{:>8.2f}\n",
            r.request.name, r.backward ? "backward" : "forward", r.request.num_ranks,
            r.request.tokens_per_rank, r.layer.median, r.layer.min, r.layer.max, r.gflops,
            r.library.median, r.library.min, r.library_gflops, r.ratio());
    }
    return text;
}

nlohmann::ordered_json bench_json(const std::vector<PassRecord>& records) {
    const RunIdentity who = run_identity();
    Json json = {{"command", who.command},
                 {"commit", who.commit},
                 {"device", processor_facts()["model"]},
                 {"cores", std::thread::hardware_concurrency()},
                 {"date", who.date},
                 {"gpus", 0},
                 {"processes", 1},
                 {"virtual", false},
                 {"records", Json::array()}};
    for (const PassRecord& r : records) {
        if (r.request.num_ranks > 1) json["virtual"] = true;  // ranks are threads
        json["records"].push_back(record_json(r));
    }
    return json;
}

}  // namespace mok::cli
