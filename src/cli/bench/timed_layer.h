#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/routing_choice.h"
#include "cli/bench/timed_task.h"
#include "openmok/shape.h"

namespace mok::cli {

enum class BenchPass {
    Forward,           // a training forward: keeps what its backward needs
    ForwardInference,  // keeps nothing
    Backward,          // input gradients and weight gradients
};
// "forward", "forward-inference", "backward": in records and to peers.
const char* pass_name(BenchPass pass);

// One layer to be timed: routed experts only, as many tokens on every rank.
struct BenchCase {
    std::string name;
    LayerShape shape;
    Tuning tuning;
    int num_ranks = 1;
    int64_t tokens_per_rank = 0;
    RoutingChoice routing;
    uint64_t seed = 1;
    bool backward = false;            // a backward will be asked for
    bool copies_beside = false;       // a copy kernel runs beside every timed pass
    std::vector<int32_t> topk_ids;    // [R * T, K]
    std::vector<float> topk_weights;  // [R * T, K]
};

// Draws the ids and weights of a case; the weights of a token are positive and add up to 1.
void draw_routing(BenchCase& c);

// What a layer says about itself and a pass that has run; what it does not know is absent.
struct PassFacts {
    std::optional<int64_t> launches;  // of one pass, memory operations not counted
    std::optional<int64_t> ring_rows, minibatch_rows;
    std::optional<int64_t> max_sms;                                     // that the pass may use
    std::optional<int64_t> workspace_bytes, context_bytes, peak_bytes;  // of all ranks
    std::optional<int64_t> link_bytes;     // over all links, in one pass
    std::optional<double> copy_median_ms;  // of the copies beside its executions
    std::string digest;                    // SHA-256 of what the pass computed
};

struct LayerDevice {
    std::string name;        // of the GPU
    std::string pci_bus_id;  // of the first GPU
    int num_gpus = 1, num_processes = 1;
};

// The layer behind the benchmark: what prepares a case on its device and times one execution.
class TimedLayer {
  public:
    virtual ~TimedLayer() = default;

    virtual LayerDevice device() const = 0;
    // Memory and tensors of a case; those of the last case are gone. Throws ShapeError for a case
    // that cannot be had.
    virtual void prepare(const BenchCase& c) = 0;
    // One execution in milliseconds by the device's own events, begun on an idle device: the
    // slowest rank's. A backward is that of a forward which ran before the clock started.
    virtual double run_ms(BenchPass pass) = 0;
    // The making of the route table alone, the same way.
    virtual double table_ms() = 0;
    // Of the last execution of the pass.
    virtual PassFacts facts(BenchPass pass) = 0;
    // The tasks of one execution, of all ranks.
    virtual std::vector<TimedTask> trace(BenchPass pass) = 0;
};

}  // namespace mok::cli
