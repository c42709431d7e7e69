#include "cli/bench/gpu_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace mok::cli {
namespace {

// The layer first, then the peers that run this pass; a run of each has been made. `last_runs` are
// the peers' by name, and must outlive the contestants.
std::vector<Contestant> contestants_of(BenchPass pass, TimedLayer& layer, Peers* peers,
                                       std::map<std::string, PeerRun>& last_runs,
                                       std::vector<std::string>& notes) {
    std::vector<Contestant> contestants = {{"", [&layer, pass] { return layer.run_ms(pass); }}};
    contestants.front().run_ms();
    if (peers == nullptr) return contestants;
    for (const std::string& name : peers->names()) {
        try {
            PeerRun& last = last_runs[name] = peers->run(name, pass);
            contestants.push_back({name, [peers, name, pass, &last] {
                                       last = peers->run(name, pass);
                                       return last.ms;
                                   }});
        } catch (const PeerError& e) {
            notes.push_back(
                fmt::format("{} was left out of the {}: {}", name, pass_name(pass), e.what()));
        }
    }
    return contestants;
}

void enter(GpuRecord& record, const std::string& name, const PeerRun& last, double median_ms) {
    if (name == kGemmOnly) {
        record.gemm_only_ms = median_ms;
    } else if (name == kGemmOnlyOwnCounts) {
        record.own_counts_ms = median_ms;
    } else if (!record.peer || median_ms < *record.peer_median_ms) {
        record.peer = name;
        record.peer_median_ms = median_ms;
        record.peer_peak_bytes = last.peak_bytes;
        record.peer_saved_bytes = last.saved_bytes;
    }
}

double median_table_ms(TimedLayer& layer, int iterations) {
    std::vector<double> times(static_cast<size_t>(iterations));
    std::generate(times.begin(), times.end(), [&layer] { return layer.table_ms(); });
    return spread_of(times).median;
}

}  // namespace

int64_t steps_of(const std::vector<BenchPass>& passes) {
    return 1 + 2 * static_cast<int64_t>(passes.size());
}

GpuBenchResult bench_case(const BenchCase& c, const std::vector<BenchPass>& passes,
                          const TurnOptions& turns, TimedLayer& layer, Peers* peers,
                          GpuSensors& sensors, const BeginStep& begin_step) {
    GpuBenchResult result;
    const auto begin = [&](std::string_view step) {
        begin_step(fmt::format("{} T={}: {}", c.name, c.tokens_per_rank, step));
    };
    begin("set-up");
    layer.prepare(c);
    if (peers != nullptr) result.notes = peers->setup(c);
    for (const BenchPass pass : passes) {
        begin(pass_name(pass));
        std::map<std::string, PeerRun> last_runs;
        const std::vector<Contestant> contestants =
            contestants_of(pass, layer, peers, last_runs, result.notes);
        const auto times = time_in_turn(contestants, turns, [&sensors] { sensors.sample(); });
        GpuRecord record;
        record.shape_name = c.name;
        record.shape = c.shape;
        record.num_ranks = c.num_ranks;
        record.tokens_per_rank = c.tokens_per_rank;
        record.routing = routing_text(c.routing);
        record.pass = pass;
        record.iterations = turns.iterations;
        record.layer = spread_of(times[0]);
        for (size_t i = 1; i < contestants.size(); ++i) {
            const std::string& name = contestants[i].name;
            enter(record, name, last_runs.at(name), spread_of(times[i]).median);
        }
        begin(fmt::format("digest of the {}", pass_name(pass)));
        record.facts = layer.facts(pass);
        if (pass != BenchPass::Backward) record.table_ms = median_table_ms(layer, turns.iterations);
        result.records.push_back(std::move(record));
    }
    if (peers != nullptr) peers->release();  // the next case's layer may need the memory
    return result;
}

}  // namespace mok::cli
