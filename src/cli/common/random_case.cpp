#include "cli/common/random_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cli/common/random.h"

namespace mok::cli {
namespace {

std::vector<Bf16> normal_tensor(Random& random, int64_t elements, double deviation) {
    std::vector<Bf16> t(elements);
    for (Bf16& v : t) v = to_bf16(static_cast<float>(deviation * random.normal()));
    return t;
}

std::vector<double> widen(const std::vector<Bf16>& t) {
    std::vector<double> out(t.size());
    std::transform(t.begin(), t.end(), out.begin(), [](Bf16 v) { return double{to_f32(v)}; });
    return out;
}

ConstTensor view(const std::vector<Bf16>& t, std::initializer_list<int64_t> shape) {
    return t.empty() ? ConstTensor() : ConstTensor(t.data(), DType::BF16, shape);
}

oracle::Quantisation quantisation_of(Precision precision) {
    switch (precision) {
        case Precision::Fp8Block:
            return oracle::Quantisation::Fp8Block;
        case Precision::Mxfp8:
            return oracle::Quantisation::Mxfp8;
        default:
            return oracle::Quantisation::None;
    }
}

// Chooses K distinct experts with given cumulative weights.
void choose_distinct(Random& random, const std::vector<double>& cumulative, int64_t top_k,
                     int32_t* ids) {
    for (int64_t c = 0; c < top_k; ++c) {
        do {
            const double at = random.uniform() * cumulative.back();
            const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), at);
            ids[c] = static_cast<int32_t>(
                std::min<int64_t>(found - cumulative.begin(), std::ssize(cumulative) - 1));
        } while (std::find(ids, ids + c, ids[c]) != ids + c);
    }
}

bool has_duplicates(const int32_t* ids, int64_t top_k) {
    for (int64_t c = 1; c < top_k; ++c) {
        if (std::find(ids, ids + c, ids[c]) != ids + c) return true;
    }
    return false;
}

}  // namespace

void keep_duplicates_from_cancelling(const int32_t* ids, int64_t top_k, float* weights) {
    if (!has_duplicates(ids, top_k)) return;
    std::transform(weights, weights + top_k, weights, [](float w) { return std::fabs(w); });
}

const char* routing_name(Routing routing) {
    switch (routing) {
        case Routing::Balanced:
            return "balanced-random";
        case Routing::Zipf:
            return "zipf-1.2";
        case Routing::OneExpert:
            return "one-expert";
        default:
            return "empty";
    }
}

std::vector<int32_t> random_ids(Routing routing, int64_t num_tokens, int64_t num_experts,
                                int64_t top_k, uint64_t seed) {
    std::vector<int32_t> ids(num_tokens * top_k, -1);
    if (routing == Routing::Empty) return ids;
    if (routing == Routing::OneExpert) {
        std::fill(ids.begin(), ids.end(), static_cast<int32_t>(num_experts - 1));
        return ids;
    }
    std::vector<double> weights(num_experts, 1.0);
    if (routing == Routing::Zipf) {
        for (int64_t e = 0; e < num_experts; ++e) {
            weights[e] = std::pow(static_cast<double>(e + 1), -1.2);
        }
    }
    return distinct_ids(weights, num_tokens, top_k, seed);
}

std::vector<int32_t> distinct_ids(const std::vector<double>& weights, int64_t num_tokens,
                                  int64_t top_k, uint64_t seed) {
    const int64_t num_experts = std::ssize(weights);
    if (top_k > num_experts) {
        throw ShapeError("top_k: expected at most the " + std::to_string(num_experts) +
                         " experts for distinct choices, found " + std::to_string(top_k));
    }
    std::vector<double> cumulative(num_experts);
    std::partial_sum(weights.begin(), weights.end(), cumulative.begin());
    Random random(seed);
    std::vector<int32_t> ids(num_tokens * top_k);
    std::vector<int32_t> shuffled(num_experts);
    for (int64_t t = 0; t < num_tokens; ++t) {
        int32_t* row = ids.data() + t * top_k;
        if (2 * top_k <= num_experts) {
            choose_distinct(random, cumulative, top_k, row);
            continue;
        }
        // Many of few: weighted draws without replacement by exponential keys (Efraimidis and
        // Spirakis, 2006).
        std::vector<double> key(num_experts);
        for (int64_t e = 0; e < num_experts; ++e) {
            const double weight = cumulative[e] - (e > 0 ? cumulative[e - 1] : 0.0);
            key[e] = -std::log(1.0 - random.uniform()) / weight;
        }
        std::iota(shuffled.begin(), shuffled.end(), 0);
        std::sort(shuffled.begin(), shuffled.end(),
                  [&key](int32_t a, int32_t b) { return key[a] < key[b]; });
        std::copy_n(shuffled.begin(), top_k, row);
    }
    return ids;
}

RandomCase random_case(const CaseOptions& o) {
    const LayerShape& s = o.shape;
    const int64_t n = o.num_tokens, h = s.hidden, i = s.intermediate, e = s.num_experts;
    const int64_t k = s.top_k, w = s.shared_intermediate;
    Random random(o.seed);
    const double in_deviation = 1.0 / std::sqrt(static_cast<double>(h));
    const double out_deviation = 1.0 / std::sqrt(static_cast<double>(i));
    RandomCase c;
    c.shape = s;
    c.num_tokens = n;
    c.x = normal_tensor(random, n * h, 1.0);
    c.gate = normal_tensor(random, e * i * h, in_deviation);
    c.up = normal_tensor(random, e * i * h, in_deviation);
    c.down = normal_tensor(random, e * h * i, out_deviation);
    if (o.biases) {
        c.gate_bias = normal_tensor(random, e * i, 0.5);
        c.up_bias = normal_tensor(random, e * i, 0.5);
        c.down_bias = normal_tensor(random, e * h, 0.5);
    }
    if (w > 0) {
        c.shared_gate = normal_tensor(random, w * h, in_deviation);
        c.shared_up = normal_tensor(random, w * h, in_deviation);
        c.shared_down = normal_tensor(random, h * w, 1.0 / std::sqrt(static_cast<double>(w)));
    }
    if (o.backward) c.grad_output = normal_tensor(random, n * h, 1.0);
    c.topk_ids = random_ids(o.routing, n, e, k, random.bits());
    c.topk_weights.resize(n * k);
    for (float& weight : c.topk_weights) weight = static_cast<float>(1.2 * random.uniform() - 0.2);
    if (w > 0 && o.shared_weights) {
        c.shared_weights.resize(n);
        for (float& weight : c.shared_weights) weight = static_cast<float>(random.uniform());
    }
    for (int64_t t = 0; t < n; ++t) {
        if (random.uniform() < o.duplicates) {
            std::fill_n(c.topk_ids.begin() + t * k, k, c.topk_ids[t * k]);
        }
        keep_duplicates_from_cancelling(c.topk_ids.data() + t * k, k,
                                        c.topk_weights.data() + t * k);
    }
    for (int64_t r = 0; r < n * k; ++r) {
        if (random.uniform() < o.masked) c.topk_ids[r] = -1;
        if (c.topk_ids[r] < 0) c.topk_weights[r] = std::numeric_limits<float>::quiet_NaN();
    }
    return c;
}

GlobalInputs RandomCase::inputs() const {
    const int64_t n = num_tokens, h = shape.hidden, i = shape.intermediate, e = shape.num_experts;
    const int64_t k = shape.top_k, s = shape.shared_intermediate;
    GlobalInputs in;
    in.x = ConstTensor(x.data(), DType::BF16, {n, h});
    in.topk_ids = ConstTensor(topk_ids.data(), DType::I32, {n, k});
    in.topk_weights = ConstTensor(topk_weights.data(), DType::F32, {n, k});
    in.weights.gate = view(gate, {e, i, h});
    in.weights.up = view(up, {e, i, h});
    in.weights.down = view(down, {e, h, i});
    in.weights.gate_bias = view(gate_bias, {e, i});
    in.weights.up_bias = view(up_bias, {e, i});
    in.weights.down_bias = view(down_bias, {e, h});
    in.weights.shared_gate = view(shared_gate, {s, h});
    in.weights.shared_up = view(shared_up, {s, h});
    in.weights.shared_down = view(shared_down, {h, s});
    if (!shared_weights.empty()) {
        in.shared_weights = ConstTensor(shared_weights.data(), DType::F32, {n});
    }
    in.grad_output = view(grad_output, {n, h});
    return in;
}

oracle::Inputs RandomCase::oracle_inputs() const {
    oracle::Inputs in;
    in.tokens = num_tokens;
    in.hidden = shape.hidden;
    in.intermediate = shape.intermediate;
    in.experts = shape.num_experts;
    in.top_k = shape.top_k;
    in.shared_intermediate = shape.shared_intermediate;
    in.activation = shape.activation;
    in.quantisation = quantisation_of(shape.precision);
    in.x = widen(x);
    in.topk_ids.assign(topk_ids.begin(), topk_ids.end());
    in.topk_weights.assign(topk_weights.begin(), topk_weights.end());
    in.gate = widen(gate);
    in.up = widen(up);
    in.down = widen(down);
    in.gate_bias = widen(gate_bias);
    in.up_bias = widen(up_bias);
    in.down_bias = widen(down_bias);
    in.shared_gate = widen(shared_gate);
    in.shared_up = widen(shared_up);
    in.shared_down = widen(shared_down);
    in.shared_weights.assign(shared_weights.begin(), shared_weights.end());
    in.grad_output = widen(grad_output);
    return in;
}

}  // namespace mok::cli
