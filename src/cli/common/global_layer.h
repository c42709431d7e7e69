#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "math/bf16.h"
#include "openmok/diagnostics.h"
#include "openmok/layer.h"

namespace mok::cli {

// One layer on a global batch of N tokens, run by R ranks: what `mok run`, `mok check` and the
// tests are made of. Tensors as in openmok/layer.h, with N for T and E for E_l.
struct GlobalInputs {
    ConstTensor x, topk_ids, topk_weights;
    Weights weights;             // of all experts
    ConstTensor shared_weights;  // [N] F32, optional
    ConstTensor grad_output;     // [N, H]; absent: forward only
};

struct GlobalOptions {
    Device device;  // CUDA: all ranks of this process share it, as virtual ranks
    // This process's rank in a group of processes. It runs what has as many ranks; whatever has
    // fewer is run by every process for itself.
    std::optional<Group> processes;
    int num_ranks = 1;
    std::vector<int64_t> tokens_per_rank;  // empty: even, the first ranks one more
    Tuning tuning;
    GroupOptions group;
    std::vector<Diagnostics> diagnostics;  // by rank; empty: none
    bool split_backward = false;           // backward_input, then wgrad
    bool recompute = false;                // throw the context away and make it again
    bool poison = false;                   // NaN into all workspaces before each pass
};

struct GlobalResult {
    std::vector<Bf16> output;                   // [N, H]
    std::vector<Bf16> d_x;                      // [N, H]
    std::vector<float> d_topk_weights;          // [N, K]
    std::vector<float> d_shared_weights;        // [N]
    std::vector<float> d_gate, d_up;            // [E, I, H]
    std::vector<float> d_down;                  // [E, H, I]
    std::vector<float> d_gate_bias, d_up_bias;  // [E, I]
    std::vector<float> d_down_bias;             // [E, H]
    std::vector<float> d_shared_gate, d_shared_up, d_shared_down;
    std::vector<int32_t> tokens_per_expert;          // [E]
    std::vector<LinkBytes> links;                    // by rank
    int64_t workspace_bytes = 0, context_bytes = 0;  // of all ranks
};

// Rows of every rank: the even split, or tokens_per_rank after checking it.
std::vector<int64_t> split_tokens(int64_t num_tokens, const GlobalOptions& options);

// Throws ShapeError for what the layer cannot take and TimeoutError for ranks that were lost; where
// several ranks throw, the first that is not a consequence of another's.
GlobalResult run_global(const LayerShape& shape, const GlobalInputs& inputs,
                        const GlobalOptions& options);

}  // namespace mok::cli
