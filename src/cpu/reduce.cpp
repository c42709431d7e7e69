#include "cpu/reduce.h"

#include <vector>

#include "cpu/block.h"

namespace mok::cpu {
namespace {

// Adds factor(choice) * row of every unmasked choice of a token to sum, in the order of the
// choices.
template <class Factor>
void add_choices(const RankPass& d, const int32_t* ids, int64_t token, Factor&& factor,
                 std::vector<float>& sum) {
    const plan::Problem& p = d.problem();
    for (int64_t route = token * p.top_k; route < (token + 1) * p.top_k; ++route) {
        if (ids[route] < 0) continue;
        const Bf16* row = d.own_window().combine + route * p.hidden;
        const float w = factor(route);
        for (int64_t i = 0; i < p.hidden; ++i) sum[i] += w * to_f32(row[i]);
    }
}

void start_with_shared(const RankPass& d, int64_t token, float weight, std::vector<float>& sum) {
    const plan::Problem& p = d.problem();
    if (p.shared_intermediate == 0) {
        sum.assign(p.hidden, 0.0f);
        return;
    }
    const Bf16* row = d.shared.out + token * p.hidden;
    for (int64_t i = 0; i < p.hidden; ++i) sum[i] = weight * to_f32(row[i]);
}

void store_row(const Tensor& out, int64_t token, const std::vector<float>& sum) {
    for (size_t i = 0; i < sum.size(); ++i) {
        store_rounded(out.data, out.dtype, token * out.stride[0] + static_cast<int64_t>(i), sum[i]);
    }
}

}  // namespace

void reduce_output(const RankPass& d, const int32_t* ids, const Tensor& out) {
    std::vector<float> sum(d.problem().hidden);
    for (int64_t token = 0; token < d.problem().num_tokens; ++token) {
        const bool shared = d.problem().shared_intermediate > 0;
        start_with_shared(d, token, shared ? d.shared.weights[token] : 0.0f, sum);
        add_choices(
            d, ids, token, [&d](int64_t r) { return d.own_window().topk_weights[r]; }, sum);
        store_row(out, token, sum);
    }
}

void reduce_input_grads(const RankPass& d, const int32_t* ids, const InputGrads& grads) {
    const plan::Problem& p = d.problem();
    std::vector<float> sum(p.hidden);
    const int64_t parts = plan::gate_up_parts(p, true) + 1;
    for (int64_t token = 0; token < p.num_tokens; ++token) {
        if (grads.x.present()) {
            start_with_shared(d, token, 1.0f, sum);
            add_choices(
                d, ids, token, [](int64_t) { return 1.0f; }, sum);
            store_row(grads.x, token, sum);
        }
        for (int64_t c = 0; grads.topk_weights.present() && c < p.top_k; ++c) {
            const int64_t route = token * p.top_k + c;
            static_cast<float*>(grads.topk_weights.data)[token * grads.topk_weights.stride[0] + c] =
                ids[route] < 0 ? 0.0f : d.own_window().d_topk_weights[route];
        }
        if (grads.shared_weights.present()) {
            float total = 0.0f;
            for (int64_t i = 0; i < parts; ++i)
                total += d.shared.router_partials[token * parts + i];
            static_cast<float*>(grads.shared_weights.data)[token] = total;
        }
    }
}

}  // namespace mok::cpu
