#include <algorithm>

#include "cli/common/random_case.h"

namespace mok::cli {
namespace {

using Shape = std::vector<int64_t>;

std::vector<float> widen(const std::vector<Bf16>& t) {
    std::vector<float> out(t.size());
    std::transform(t.begin(), t.end(), out.begin(), [](Bf16 v) { return to_f32(v); });
    return out;
}

// The FP32 tensors of a result beside their names and shapes; the names are those of `mok run`.
struct Named {
    const char* name;
    std::vector<float> GlobalResult::*found;
    std::vector<double> oracle::Gradients::*want;
    Shape shape;
};

std::vector<Named> gradients_of(const LayerShape& s, int64_t num_tokens) {
    using R = GlobalResult;
    using G = oracle::Gradients;
    const int64_t h = s.hidden, i = s.intermediate, e = s.num_experts, w = s.shared_intermediate;
    return {
        {"grad_topk_weights", &R::d_topk_weights, &G::topk_weights, {num_tokens, s.top_k}},
        {"grad_shared_weights", &R::d_shared_weights, &G::shared_weights, {num_tokens}},
        {"grad_gate_proj", &R::d_gate, &G::gate, {e, i, h}},
        {"grad_up_proj", &R::d_up, &G::up, {e, i, h}},
        {"grad_down_proj", &R::d_down, &G::down, {e, h, i}},
        {"grad_gate_bias", &R::d_gate_bias, &G::gate_bias, {e, i}},
        {"grad_up_bias", &R::d_up_bias, &G::up_bias, {e, i}},
        {"grad_down_bias", &R::d_down_bias, &G::down_bias, {e, h}},
        {"grad_shared_gate_proj", &R::d_shared_gate, &G::shared_gate, {w, h}},
        {"grad_shared_up_proj", &R::d_shared_up, &G::shared_up, {w, h}},
        {"grad_shared_down_proj", &R::d_shared_down, &G::shared_down, {h, w}},
    };
}

// Weight gradients of experts with few rows need the floor that compare.h describes; router
// gradients are inner products that may cancel, so they are held to their usual size.
Bounds bounds_of(Bounds bounds, const Named& named, const oracle::Gradients& g) {
    if (named.want == &oracle::Gradients::topk_weights) {
        bounds.min_rms = g.topk_weights_rms;
        bounds.every_zero_is_exact = true;
    } else if (named.want == &oracle::Gradients::shared_weights) {
        bounds.min_rms = g.shared_weights_rms;
    } else {
        bounds.row_floor = 1.0;
    }
    return bounds;
}

}  // namespace

Bounds layer_bounds(Precision precision, Device::Kind backend) {
    Bounds bounds;
    if (precision == Precision::BF16) return bounds;
    bounds.row = 0.06;
    bounds.element_rms = 0.25;
    if (precision == Precision::Mxfp8 && backend == Device::Kind::Cuda) bounds.tensor *= 3.0;
    return bounds;
}

Truth truth_of(const RandomCase& c, Device::Kind backend) {
    oracle::Inputs in = c.oracle_inputs();
    if (backend == Device::Kind::Cuda && c.shape.precision == Precision::Fp8Block) {
        in.quantisation = oracle::Quantisation::Fp8BlockOnHopper;
    }
    Truth truth;
    truth.output = oracle::forward(in).out;
    if (!c.grad_output.empty()) truth.grads = oracle::backward(in);
    return truth;
}

std::vector<Mismatch> compare_with_oracle(const RandomCase& c, const GlobalResult& found,
                                          Device::Kind backend) {
    return compare_with_truth(c, truth_of(c, backend), found, backend);
}

std::vector<Mismatch> compare_with_truth(const RandomCase& c, const Truth& want,
                                         const GlobalResult& found, Device::Kind backend) {
    std::vector<Mismatch> all;
    const auto add = [&all](std::optional<Mismatch> m) {
        if (m) all.push_back(*m);
    };
    const Shape rows{c.num_tokens, c.shape.hidden};
    const Bounds bounds = layer_bounds(c.shape.precision, backend);
    add(compare("output", widen(found.output), want.output, rows, bounds));
    if (c.grad_output.empty()) return all;
    add(compare("grad_hidden_states", widen(found.d_x), want.grads.x, rows, bounds));
    for (const Named& named : gradients_of(c.shape, c.num_tokens)) {
        // A case without shared weights uses ones; their gradient is there to ask for, the oracle's
        // not.
        if ((want.grads.*named.want).empty()) continue;
        add(compare(named.name, found.*named.found, want.grads.*named.want, named.shape,
                    bounds_of(bounds, named, want.grads)));
    }
    return all;
}

std::vector<Mismatch> compare_results(const LayerShape& shape, const GlobalResult& a,
                                      const GlobalResult& b) {
    std::vector<Mismatch> all;
    const auto add = [&all](std::optional<Mismatch> m) {
        if (m) all.push_back(*m);
    };
    const int64_t num_tokens = std::ssize(a.output) / shape.hidden;
    const Shape rows{num_tokens, shape.hidden};
    const auto bits = [](const std::vector<Bf16>& t) {
        return std::span(reinterpret_cast<const uint16_t*>(t.data()), t.size());
    };
    add(compare_bits<uint16_t>("output", bits(a.output), bits(b.output), rows));
    if (a.d_x.empty() && b.d_x.empty()) return all;
    add(compare_bits<uint16_t>("grad_hidden_states", bits(a.d_x), bits(b.d_x), rows));
    for (const Named& named : gradients_of(shape, num_tokens)) {
        if ((a.*named.found).empty() && (b.*named.found).empty()) continue;
        add(compare_bits<float>(named.name, a.*named.found, b.*named.found, named.shape));
    }
    return all;
}

}  // namespace mok::cli
