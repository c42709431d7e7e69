#pragma once

#include <cstdint>
#include <span>
#include <vector>

// The router of one sequence: p = softmax(logits) over E experts, the K largest p (the lower expert
// first where they are equal), router weights w_c = p_c / sum of the chosen p. And the load-balance
// loss of the global batch (Fedus, Zoph, Shazeer 2021, equation 4):
//     balance * E * sum over e of f_e * P_e,
// f_e the fraction of the batch's routes that go to e, P_e the mean of p_e over its tokens.
namespace mok::train {

struct RouterShape {
    int64_t rows = 0;  // tokens of the sequence
    int64_t num_experts = 0;
    int64_t top_k = 0;
};

struct RouterChoice {
    float* probs;           // [L, E], in: logits
    int32_t* ids;           // [L, K]
    float* weights;         // [L, K]
    int64_t* expert_count;  // [E], routes of this sequence
    double* prob_sum;       // [E], sum of p over this sequence's tokens
};
void choose_experts(RouterShape shape, const RouterChoice& choice);

// The statistics of the global batch, from those of its sequences, added in sequence order.
struct Balance {
    double loss = 0.0;
    std::vector<float> d_prob;  // [E], the loss's derivative by every token's p_e; f_e is constant
};
struct BatchStatistics {
    std::span<const int64_t> expert_count;  // [sequences, E]
    std::span<const double> prob_sum;       // [sequences, E]
    int64_t num_tokens = 0;
};
Balance load_balance(RouterShape shape, const BatchStatistics& batch, double factor);

// d_logits [L, E] from d_w [L, K] and the balance loss. With S the sum of the chosen p:
//     d_p_c = (d_w_c - sum over chosen j of d_w_j w_j) / S + balance,  the other d_p = balance,
//     d_logits = p * (d_p - sum over e of d_p_e p_e).
struct RouterGrad {
    const float* probs;
    const int32_t* ids;
    const float* weights;
    const float* d_weights;
    const float* d_prob;  // Balance::d_prob
    float* d_logits;
};
void choose_experts_backward(RouterShape shape, const RouterGrad& grad);

}  // namespace mok::train
