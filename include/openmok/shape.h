#pragma once

#include <cstdint>

#include "openmok/activation.h"
#include "openmok/precision.h"

namespace mok {

// A mixture-of-experts layer over a group of R ranks. Rank r owns the next E / R experts, the first
// E mod R ranks one more.
struct LayerShape {
    int64_t hidden = 0;               // H, a multiple of 8
    int64_t intermediate = 0;         // I, a multiple of 8
    int64_t num_experts = 0;          // E, of all ranks
    int64_t top_k = 0;                // K, 1..128
    int64_t shared_intermediate = 0;  // S, a multiple of 8; 0: no shared expert
    Activation activation;
    Precision precision = Precision::BF16;  // of the routed experts
};

// How the work is cut. No result depends on any of it.
struct Tuning {
    // b: rows of a minibatch, a multiple of 128; 0: four full waves per phase of a forward, two of
    // a backward (docs/design.md), at most the ring's rows.
    int64_t minibatch_rows = 0;
    // B: rows of the ring, a multiple of 128, at least b. Fewer rows save memory and cost overlap.
    int64_t macrobatch_rows = 131072;
    // C: routed rows whose gate and up are kept for the backward, a multiple of 128; the backward
    // recomputes the others. -1: every row.
    int64_t context_rows = -1;
    // Keep x of these rows as well, so that the backward need not pull it again (and d_y between
    // backward_input and wgrad).
    bool keep_x = false;
    // CPU: threads of a rank; CUDA: multiprocessors that the pass may use. 0: all there are.
    int max_workers = 0;
    // FP8 precisions: the forward pulls x in FP8, quantised once at home, instead of in BF16. With
    // keep_x it pulls BF16, which the context keeps.
    bool fp8_dispatch = true;
};

}  // namespace mok
