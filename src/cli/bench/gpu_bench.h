#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/gpu_record.h"
#include "cli/bench/gpu_sensors.h"
#include "cli/bench/in_turn.h"
#include "cli/bench/peers.h"
#include "cli/bench/timed_layer.h"

namespace mok::cli {

struct GpuBenchResult {
    std::vector<GpuRecord> records;  // one for each pass, in the order asked for
    std::vector<std::string> notes;  // what was left out and why
};

// Times the passes of a case: for each pass the layer and every peer that can run it, in turn.
// `peers` may be null: none was asked for. A peer that fails at its first run of a pass is left out
// of that pass with a note; one that fails later ends the benchmark with its PeerError.
// begin_step is told of every step that begins, steps_of of them.
using BeginStep = std::function<void(std::string_view)>;
GpuBenchResult bench_case(
    const BenchCase& c, const std::vector<BenchPass>& passes, const TurnOptions& turns,
    TimedLayer& layer, Peers* peers, GpuSensors& sensors,
    const BeginStep& begin_step = [](auto) {});
int64_t steps_of(const std::vector<BenchPass>& passes);

}  // namespace mok::cli
