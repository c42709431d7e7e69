#pragma once

#include "openmok/grad_mode.h"
#include "openmok/tensor.h"

// What the calls of layer.h take. T: tokens of this rank, E_l: experts of this rank, S: the shared
// expert's width; the other letters are LayerShape's.
namespace mok {

class Fp8Weights;

struct Weights {
    ConstTensor gate;         // [E_l, I, H]
    ConstTensor up;           // [E_l, I, H]
    ConstTensor down;         // [E_l, H, I]
    ConstTensor gate_bias;    // [E_l, I], optional
    ConstTensor up_bias;      // [E_l, I], optional
    ConstTensor down_bias;    // [E_l, H], optional
    ConstTensor shared_gate;  // [S, H], where S > 0
    ConstTensor shared_up;    // [S, H]
    ConstTensor shared_down;  // [H, S]
    // Layers of FP8 only, and there needed: gate, up and down as quantize_weights made them. The
    // passes then do not read gate, up and down, which may be absent.
    const Fp8Weights* fp8 = nullptr;
};

struct Inputs {
    ConstTensor x;               // [T, H]
    ConstTensor topk_weights;    // [T, K] F32
    ConstTensor shared_weights;  // [T] F32, optional: s = 1
};

// Gradients of the inputs; an absent tensor is not asked for. d_topk_weights of a masked choice is
// 0.
struct InputGrads {
    Tensor x;               // [T, H] BF16 or F32
    Tensor topk_weights;    // [T, K] F32
    Tensor shared_weights;  // [T] F32
};

// Gradients of the weights, of Weights' shapes, BF16 or F32; an absent tensor is not asked for.
struct WeightGrads {
    Tensor gate, up, down;
    Tensor gate_bias, up_bias, down_bias;
    Tensor shared_gate, shared_up, shared_down;
    GradMode mode = GradMode::Overwrite;
    GradMode shared_mode = GradMode::Overwrite;
};

}  // namespace mok
