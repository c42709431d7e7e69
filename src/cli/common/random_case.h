#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/common/global_layer.h"
#include "cpu/compare.h"
#include "cpu/oracle.h"

namespace mok::cli {

enum class Routing {
    Balanced,   // K distinct experts per token, uniformly random
    Zipf,       // K distinct experts per token, the e-th with weight (e + 1)^-1.2
    OneExpert,  // every choice goes to the last expert
    Empty,      // every choice is masked
};
const char* routing_name(Routing routing);

struct CaseOptions {
    LayerShape shape;
    int64_t num_tokens = 0;
    Routing routing = Routing::Balanced;
    double masked = 0.0;      // share of choices that go to no expert; their weights are NaN
    double duplicates = 0.0;  // share of tokens whose choices all name one expert
    bool biases = false;
    bool shared_weights = false;
    bool backward = true;
    uint64_t seed = 1;
};

// Random tensors of a layer: x and grad_output ~ N(0, 1), weights ~ N(0, 1 / fan-in), biases
// ~ N(0, 1/4), router weights uniform in (-0.2, 1), positive in a token that names an expert twice.
// Inputs point into the case.
struct RandomCase {
    LayerShape shape;
    int64_t num_tokens = 0;
    std::vector<Bf16> x, gate, up, down, gate_bias, up_bias, down_bias;
    std::vector<Bf16> shared_gate, shared_up, shared_down, grad_output;
    std::vector<int32_t> topk_ids;
    std::vector<float> topk_weights, shared_weights;

    GlobalInputs inputs() const;
    oracle::Inputs oracle_inputs() const;
};
RandomCase random_case(const CaseOptions& options);

// Makes a token's weights positive where two of its choices name one expert. Their d_x are the same
// but for weight and rounding; with opposite signs little more than the rounding errors is left of
// the sum, and no bound on the row's own norm can hold.
void keep_duplicates_from_cancelling(const int32_t* ids, int64_t top_k, float* weights);

// K distinct ids per token by a routing, [num_tokens, top_k].
std::vector<int32_t> random_ids(Routing routing, int64_t num_tokens, int64_t num_experts,
                                int64_t top_k, uint64_t seed);
// The same by given weights of the experts, all positive. Throws ShapeError for K > E.
std::vector<int32_t> distinct_ids(const std::vector<double>& weights, int64_t num_tokens,
                                  int64_t top_k, uint64_t seed);

// What the oracle makes of a case. Where the backend is CUDA sums of fp8_block are those of
// Hopper's tensor cores, to the bit: with exact sums a value that is quantised after them would
// often be rounded to another E4M3 number, up to 1/8 away.
struct Truth {
    std::vector<double> output;  // [num_tokens, H]
    oracle::Gradients grads;     // empty where the case has no backward
};
Truth truth_of(const RandomCase& c, Device::Kind backend = Device::Kind::Cpu);

// The bounds of design.md section 12; in FP8 wider ones of a row and an element, not of a tensor. A
// value that is quantised after a sum may be rounded to another BF16 number, or E4M3 number, than
// the oracle's, because the sum is FP32: one term of a later sum is then off by up to 1/8.
//
// On CUDA mxfp8 is held to three times the tensor's bound: the order and the bits of sums of
// products with block scales are the tensor cores' own.
Bounds layer_bounds(Precision precision, Device::Kind backend);

// Every tensor of a result of a backend that is out of its bound (design.md section 12).
std::vector<Mismatch> compare_with_oracle(const RandomCase& c, const GlobalResult& found,
                                          Device::Kind backend = Device::Kind::Cpu);
std::vector<Mismatch> compare_with_truth(const RandomCase& c, const Truth& want,
                                         const GlobalResult& found,
                                         Device::Kind backend = Device::Kind::Cpu);

// Every tensor of two results whose bits differ.
std::vector<Mismatch> compare_results(const LayerShape& shape, const GlobalResult& a,
                                      const GlobalResult& b);

}  // namespace mok::cli
