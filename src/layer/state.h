#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/rank_pass.h"
#include "layer/memory.h"
#include "openmok/diagnostics.h"
#include "openmok/layer.h"
#include "plan/memory_map.h"

// What stands behind the public handles.
namespace mok {

namespace layer {
// Tells workspaces and schedules of this process apart; never 0.
uint64_t new_identity();
}  // namespace layer

struct Workspace::Impl {
    Impl(Group group, const LayerShape& shape, const Tuning& tuning, int64_t max_tokens);

    uint64_t identity = layer::new_identity();
    Group group;
    LayerShape shape;
    Tuning tuning;
    plan::Problem problem;  // without a call: num_tokens 0, minibatch_rows as given
    int num_workers;
    plan::WindowMap window_map;
    plan::WorkspaceMap map;
    // This rank's, and what keeps its peers': a rank that a fault ends may leave while others read
    // its window.
    std::shared_ptr<layer::Memory> window;
    std::vector<std::shared_ptr<layer::Memory>> all_windows;
    layer::Memory local;
    std::vector<const std::byte*> window_bases;  // of every rank
    std::vector<cpu::Window> windows;
    cpu::LinkCounters counters{};
    uint64_t num_schedules = 0;
    Diagnostics diagnostics;
};

struct Schedule::Impl {
    uint64_t identity = layer::new_identity();
    uint64_t workspace;          // identity of the one that it was made on
    int64_t num_tokens;          // T of this rank
    std::vector<int32_t> ids;    // [T, K] of this rank
    std::vector<int32_t> block;  // the table's memory
    plan::RouteTable table;
    std::vector<int32_t> tokens_per_expert;
};

struct Context::Impl {
    enum class Holds { Nothing, Activations, Operands };
    Holds holds = Holds::Nothing;
    uint64_t schedule = 0;  // identity of the one that it was filled with
    int64_t rows = 0;       // routed slots kept
    int64_t tokens = 0;     // T
    plan::ContextMap map{};
    layer::Memory saved;     // the map up to its forward part's end
    layer::Memory operands;  // the rest: between backward_input and wgrad only
    int64_t saved_bytes = 0;
};

}  // namespace mok
