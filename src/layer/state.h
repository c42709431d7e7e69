#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "layer/memory.h"
#include "openmok/diagnostics.h"
#include "openmok/layer.h"
#include "plan/memory_map.h"

// What stands behind the public handles.
namespace mok {
namespace layer {

// Tells workspaces and schedules of this process apart; never 0.
uint64_t new_identity();

class Engine;

// What a workspace is made of, the same for both backends.
struct Setup {
    Group group;
    LayerShape shape;
    Tuning tuning;
    plan::Problem problem;  // without a call: num_tokens 0, minibatch_rows as given
    plan::WindowMap window_map;
    plan::WorkspaceMap map;
    plan::Fp8WeightsMap fp8_weights_map;
};

}  // namespace layer

struct Workspace::Impl : layer::Setup {
    Impl(Group group, const LayerShape& shape, const Tuning& tuning, int64_t max_tokens);

    uint64_t identity = layer::new_identity();
    std::shared_ptr<layer::Engine> engine;
};

struct Fp8Weights::Impl {
    std::shared_ptr<layer::Engine> engine;
    plan::Problem problem;  // of the workspace that it was made for
    layer::Memory memory;
    layer::Memory operands;  // Engine::fp8_operand_bytes
    bool filled = false;
};

struct Schedule::Impl {
    uint64_t identity = layer::new_identity();
    uint64_t workspace = 0;  // identity of the one that it was made on
    std::shared_ptr<layer::Engine> engine;
    int64_t num_tokens = 0;              // T of this rank
    int num_ranks = 0, num_experts = 0;  // R, E_l
    plan::RouteTable table{};            // where the engine computes
    const int32_t* ids = nullptr;        // [T, K] of this rank, there too
    layer::Memory memory;                // what they lie in: plan::ScheduleMap
    // [E_l] on the host; CUDA: read when it is asked for, otherwise empty.
    std::vector<int32_t> tokens_per_expert;
};

struct Context::Impl {
    enum class Holds { Nothing, Activations, Operands };
    Holds holds = Holds::Nothing;
    uint64_t schedule = 0;   // identity of the one that it was filled with
    uint64_t workspace = 0;  // identity of the one whose memory it holds
    int64_t rows = 0;        // routed slots kept
    int64_t tokens = 0;      // T
    plan::ContextMap map{};
    Block block;             // where the caller has given one
    layer::Memory saved;     // the map up to its forward part's end
    layer::Memory operands;  // the rest: between backward_input and wgrad only
    int64_t saved_bytes = 0;
};

}  // namespace mok
