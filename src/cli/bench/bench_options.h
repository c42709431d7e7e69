#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/bench_shapes.h"
#include "cli/bench/in_turn.h"
#include "cli/bench/peers.h"
#include "cli/bench/timed_layer.h"

namespace mok::cli {

// The words of a `mok bench`. An absent option leaves the choice to the backend.
struct BenchOptions {
    std::string backend = "cpu";
    std::vector<std::string> models;
    std::string list;  // of shapes, instead of models
    std::optional<int64_t> hidden, intermediate, experts, top_k;
    std::vector<int64_t> tokens;
    std::optional<int> num_ranks, num_virtual_ranks;
    std::optional<int> iterations;
    std::string json;
    bool backward = false;
    std::string precision = "bf16";
    // CPU alone.
    int threads = 0;
    // A GPU alone.
    std::vector<std::string> passes;
    std::string routing = "balanced";
    int64_t ring_rows = 0, minibatch_rows = 0;  // 0: the layer's own choice
    int64_t context_rows = -1;                  // -1: all
    int max_sms = 0;                            // 0: all there are
    bool copies_beside = false;
    int device = 0;
    double warm_up_s = TurnOptions().warm_up_s;
    std::string trace;
    PeerOptions peers;
};
void add_bench_options(CLI::App& command, BenchOptions& o);

// The shapes that the options name: models, a list, or the one that the CPU backend's target is
// stated for; sizes of the options replace theirs. Throws std::invalid_argument.
std::vector<NamedShape> shapes_of(const BenchOptions& o);

// Every shape with every T, for a GPU; ids and weights are not drawn yet. T: the options', else the
// list's, else 2048. Throws std::invalid_argument.
std::vector<BenchPass> passes_of(const BenchOptions& o);
int ranks_of(const BenchOptions& o);  // 1 where no option says otherwise
// On a GPU: whether the ranks are processes with a GPU each.
bool are_processes(const BenchOptions& o);
std::vector<BenchCase> gpu_cases_of(const BenchOptions& o);

// Throws std::invalid_argument where an option of the other backend was given, or one that ranks in
// processes do not have.
void require_options_of(const CLI::App& command, const BenchOptions& o, std::string_view backend);

}  // namespace mok::cli
