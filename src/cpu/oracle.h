#pragma once

#include <cstdint>
#include <vector>

#include "openmok/activation.h"

// The textbook MoE layer and its gradients in FP64: what every backend is measured against. It
// knows one batch of tokens and nothing of ranks, slots, tiles or rings.
//
//     gate = Wg x + bg,  up = Wu x + bu,  g = min(gate, limit),  u = clamp(up, -limit, limit)
//     hidden = g * sigmoid(alpha * g) * (u + beta),  y = Wd hidden + bd
//     out[t] = s[t] * shared(x[t]) + sum over unmasked choices c of w[t,c] * y(ids[t,c], x[t])
//
// NaN and Inf are computed by these equations in IEEE arithmetic and no zero operand is skipped. A
// masked choice takes no part: its weight is not read and its gradient is exactly zero. So are the
// gradients of an expert without tokens, and those of a gate or up strictly outside the limits.
namespace mok::oracle {

// What the routed experts' operands are replaced by: the values that FP8 blocks hold of them, by
// the rules of docs/precision.md. Fp8BlockOnHopper is Fp8Block with sums of blocks as Hopper's
// tensor cores form them (hopper_sums.h), which in all others are exact.
enum class Quantisation { None, Fp8Block, Mxfp8, Fp8BlockOnHopper };

// All tensors are dense and row-major; an empty vector is an absent optional tensor.
struct Inputs {
    int64_t tokens = 0;               // N
    int64_t hidden = 0;               // H
    int64_t intermediate = 0;         // I
    int64_t experts = 0;              // E
    int64_t top_k = 0;                // K
    int64_t shared_intermediate = 0;  // S; 0: no shared expert
    Activation activation;
    Quantisation quantisation = Quantisation::None;

    std::vector<double> x;             // [N, H]
    std::vector<int64_t> topk_ids;     // [N, K] in [-1, E); -1 masks the choice
    std::vector<double> topk_weights;  // [N, K]
    std::vector<double> gate;          // [E, I, H]
    std::vector<double> up;            // [E, I, H]
    std::vector<double> down;          // [E, H, I]
    std::vector<double> gate_bias;     // [E, I], optional
    std::vector<double> up_bias;       // [E, I], optional
    std::vector<double> down_bias;     // [E, H], optional; inside y, so the weight scales it

    std::vector<double> shared_gate;     // [S, H]
    std::vector<double> shared_up;       // [S, H]
    std::vector<double> shared_down;     // [H, S]
    std::vector<double> shared_weights;  // [N], optional: all ones

    std::vector<double> grad_output;  // [N, H]; read by backward only
};

struct Outputs {
    std::vector<double> out;                 // [N, H]
    std::vector<int64_t> tokens_per_expert;  // [E]; a token counts once per unmasked choice
};

// Each gradient has the shape of its input; empty where the input is absent.
struct Gradients {
    std::vector<double> x;
    std::vector<double> topk_weights;  // <d_y, y> per choice; duplicates of an id each have theirs
    std::vector<double> gate, up, down;
    std::vector<double> gate_bias, up_bias, down_bias;
    std::vector<double> shared_gate, shared_up, shared_down;
    std::vector<double> shared_weights;

    // The RMS that the weights' gradients would have if d_y and y were unrelated: that of
    // |d_y| |y| / sqrt(H) over the rows where it is finite. A single inner product can come out
    // far smaller by cancellation, so this is the size to hold a few of them to (Bounds::min_rms).
    double topk_weights_rms = 0.0;
    double shared_weights_rms = 0.0;
};

// Both throw std::invalid_argument, with a sentence, for a size below 1 (N and S: below 0), a
// tensor whose length is not that of its shape, or an id outside [-1, E).
Outputs forward(const Inputs& in);
Gradients backward(const Inputs& in);

}  // namespace mok::oracle
