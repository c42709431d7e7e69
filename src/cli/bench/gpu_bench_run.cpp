#include "cli/bench/gpu_bench_run.h"

#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <stdexcept>

#include "cli/bench/gpu_bench.h"
#include "cli/bench/trace_json.h"
#include "cli/bench/trace_summary.h"
#include "cli/io/atomic_file.h"
#include "cli/io/progress.h"

namespace mok::cli {
namespace {

constexpr int kDefaultIterations = 100;

// One traced pass of the case that the layer is prepared for.
void write_trace(const std::string& path, TimedLayer& layer, BenchPass pass) {
    const std::vector<TimedTask> tasks = layer.trace(pass);
    io::write_text_file(path, trace_json(tasks).dump() + "\n");
    std::fputs(trace_table(summary_of(tasks)).c_str(), stdout);
    if (const auto overlap = first_overlap(tasks)) {
        fmt::print("the trace is not sound: {}\n", *overlap);
    }
    std::fputs("\n", stdout);
}

}  // namespace

void run_gpu_bench(const BenchOptions& o, TimedLayer& layer) {
    for (const std::string& file : {o.json, o.trace}) {
        if (!file.empty()) const io::AtomicFile can_be_written(file);
    }
    const std::vector<BenchPass> passes = passes_of(o);
    const TurnOptions turns{o.iterations.value_or(kDefaultIterations), o.warm_up_s};
    GpuRun run;
    run.device = layer.device();
    run.is_virtual = ranks_of(o) > run.device.num_gpus;
    GpuSensors sensors(run.device.pci_bus_id);
    std::optional<Peers> peers;
    if (!o.peers.kinds.empty()) {
        PeerOptions options = o.peers;
        if (options.script.empty()) options.script = find_peer_script();
        peers.emplace(options, ranks_of(o));
    }
    std::vector<GpuRecord> records;
    std::vector<BenchCase> cases = gpu_cases_of(o);
    if (!o.trace.empty() && cases.size() != 1) {
        throw std::invalid_argument(
            fmt::format("--trace: expected one shape and one T, found {}", cases.size()));
    }
    const int64_t steps = static_cast<int64_t>(cases.size()) * steps_of(passes);
    io::Progress progress("bench", steps);
    int64_t begun = 0;
    for (BenchCase& c : cases) {
        draw_routing(c);
        GpuBenchResult result =
            bench_case(c, passes, turns, layer, peers ? &*peers : nullptr, sensors,
                       [&](std::string_view step) { progress.update(begun++, step); });
        for (const std::string& note : result.notes) {
            fmt::print("{}, {} tokens a rank: {}\n", c.name, c.tokens_per_rank, note);
        }
        for (GpuRecord& r : result.records) records.push_back(std::move(r));
        if (!o.trace.empty()) write_trace(o.trace, layer, passes.front());
        run.driver = sensors.driver();
        run.sm_clock_mhz = sensors.sm_clock_mhz();
        run.power_w = sensors.power_w();
        if (peers) {
            run.torch = peers->torch_version();
            run.nccl = peers->nccl_version();
        }
        // After every case, so that a run that is ended early leaves what it has measured.
        if (!o.json.empty()) {
            io::write_text_file(o.json, gpu_bench_json(run, records).dump(2) + "\n");
        }
    }
    progress.update(steps, "");
    std::fputs(gpu_bench_table(run, records).c_str(), stdout);
}

}  // namespace mok::cli
