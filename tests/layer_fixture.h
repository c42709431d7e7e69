#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "cli/common/random.h"
#include "cli/common/random_case.h"
#include "cli/common/rank_threads.h"
#include "guarded_tensor.h"

// What the tests of the layer share. "Right" means: equals the FP64 oracle within the bounds, has
// the bits of one rank, and nothing outside the result is written.
namespace mok_test {

using namespace mok;
using cli::CaseOptions;
using cli::GlobalOptions;
using cli::GlobalResult;
using cli::RandomCase;
using cli::Routing;

inline CaseOptions case_of(int64_t num_tokens, int64_t hidden = 256, int64_t intermediate = 128,
                           int64_t num_experts = 8, int64_t top_k = 2) {
    CaseOptions o;
    o.shape.hidden = hidden;
    o.shape.intermediate = intermediate;
    o.shape.num_experts = num_experts;
    o.shape.top_k = top_k;
    o.num_tokens = num_tokens;
    return o;
}

// Everything that a layer can have at once, in sizes that fill no tile.
inline CaseOptions rich_case(int64_t num_tokens) {
    CaseOptions o = case_of(num_tokens, 136, 72, 8, 3);
    o.shape.shared_intermediate = 136;
    o.shape.activation = {2.0f, 1.702f, 1.0f};
    o.routing = Routing::Zipf;
    o.masked = 0.15;
    o.duplicates = 0.1;
    o.biases = true;
    o.shared_weights = true;
    return o;
}

// Sets the routing of a case: the weights of masked choices become NaN, the others stay finite.
inline void set_ids(RandomCase& c, const std::vector<int32_t>& ids) {
    ASSERT_EQ(ids.size(), c.topk_ids.size());
    cli::Random random(77);
    c.topk_ids = ids;
    for (size_t r = 0; r < ids.size(); ++r) {
        c.topk_weights[r] = ids[r] < 0 ? std::numeric_limits<float>::quiet_NaN()
                                       : static_cast<float>(1.2 * random.uniform() - 0.2);
    }
    const int64_t k = c.shape.top_k;
    for (int64_t t = 0; t < c.num_tokens; ++t) {
        cli::keep_duplicates_from_cancelling(&c.topk_ids[t * k], k, &c.topk_weights[t * k]);
    }
}

// counts[e] choices of expert e, shuffled.
inline std::vector<int32_t> ids_with_counts(const std::vector<int64_t>& counts, uint64_t seed) {
    std::vector<int32_t> ids;
    for (size_t e = 0; e < counts.size(); ++e) {
        ids.insert(ids.end(), counts[e], static_cast<int32_t>(e));
    }
    cli::Random random(seed);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.below(i)]);
    return ids;
}

inline GlobalOptions on_ranks(int num_ranks, std::vector<int64_t> tokens_per_rank = {}) {
    GlobalOptions g;
    g.num_ranks = num_ranks;
    g.tokens_per_rank = std::move(tokens_per_rank);
    g.poison = true;
    return g;
}

// Whether the shared expert's weight gradients have the bits of one rank (docs/determinism.md).
inline bool splits_at_blocks_of_128(int64_t num_tokens, const GlobalOptions& g) {
    int64_t first = 0;
    for (const int64_t tokens : cli::split_tokens(num_tokens, g)) {
        if (first % 128 != 0 && first != num_tokens) return false;
        first += tokens;
    }
    return true;
}
inline void drop_shared_gradients(GlobalResult& r) {
    r.d_shared_gate.clear();
    r.d_shared_up.clear();
    r.d_shared_down.clear();
}

inline void expect_same(const LayerShape& shape, const GlobalResult& found,
                        const GlobalResult& want, const std::string& what = "") {
    for (const Mismatch& m : cli::compare_results(shape, found, want)) {
        ADD_FAILURE() << what << m.sentence();
    }
}
inline void expect_within_bounds(const RandomCase& c, const GlobalResult& found) {
    for (const Mismatch& m : cli::compare_with_oracle(c, found)) ADD_FAILURE() << m.sentence();
}

inline GlobalResult run(const RandomCase& c, const GlobalOptions& g) {
    return cli::run_global(c.shape, c.inputs(), g);
}

// Runs a case, compares it with the oracle and, bit by bit, with one rank; returns its result.
inline GlobalResult expect_right(const RandomCase& c, const GlobalOptions& g) {
    GlobalResult found = run(c, g);
    expect_within_bounds(c, found);
    GlobalResult one = run(c, {});
    if (!splits_at_blocks_of_128(c.num_tokens, g)) {
        GlobalResult compared = found;
        drop_shared_gradients(compared);
        drop_shared_gradients(one);
        expect_same(c.shape, compared, one);
    } else {
        expect_same(c.shape, found, one);
    }
    return found;
}

// ---- calls of the layer by the test itself ----------------------------------------------------

// A rank's part of a case: tokens [first, first + num) and the workspace's experts. Points into the
// case.
struct RankPart {
    ConstTensor ids;
    Inputs inputs;
    ConstTensor grad_output;
    Weights weights;
};

inline ConstTensor rows_of(ConstTensor t, int64_t first, int64_t num) {
    if (!t.present()) return t;
    t.data = static_cast<const char*>(t.data) + first * t.stride[0] * dtype_bytes(t.dtype);
    t.shape[0] = num;
    return t;
}

inline RankPart part_of(const RandomCase& c, const Workspace& w, int64_t first, int64_t num) {
    const cli::GlobalInputs all = c.inputs();
    RankPart part;
    part.ids = rows_of(all.topk_ids, first, num);
    part.inputs = {rows_of(all.x, first, num), rows_of(all.topk_weights, first, num),
                   rows_of(all.shared_weights, first, num)};
    const int64_t h = c.shape.hidden;
    part.grad_output = ConstTensor(c.grad_output.data() + first * h, DType::BF16, {num, h});
    part.weights = all.weights;
    for (ConstTensor Weights::*t : {&Weights::gate, &Weights::up, &Weights::down,
                                    &Weights::gate_bias, &Weights::up_bias, &Weights::down_bias}) {
        part.weights.*t = rows_of(all.weights.*t, w.first_expert(), w.num_local_experts());
    }
    return part;
}

// Guarded outputs of one rank's forward and backward.
struct RankOutputs {
    GuardedTensor out, d_x, d_topk_weights, d_shared_weights;
    GuardedTensor gate, up, down, gate_bias, up_bias, down_bias;
    GuardedTensor shared_gate, shared_up, shared_down;

    // Gradients of biases and of the shared expert where the case has them; weight gradients of
    // `dtype`.
    RankOutputs(const RandomCase& c, const Workspace& w, int64_t num_tokens,
                DType dtype = DType::F32) {
        const LayerShape& s = c.shape;
        const int64_t h = s.hidden, i = s.intermediate, e = w.num_local_experts();
        const int64_t width = s.shared_intermediate;
        out = GuardedTensor(DType::BF16, {num_tokens, h});
        d_x = GuardedTensor(DType::BF16, {num_tokens, h});
        d_topk_weights = GuardedTensor(DType::F32, {num_tokens, s.top_k});
        gate = GuardedTensor(dtype, {e, i, h});
        up = GuardedTensor(dtype, {e, i, h});
        down = GuardedTensor(dtype, {e, h, i});
        if (!c.gate_bias.empty()) {
            gate_bias = GuardedTensor(dtype, {e, i});
            up_bias = GuardedTensor(dtype, {e, i});
            down_bias = GuardedTensor(dtype, {e, h});
        }
        if (width > 0) {
            d_shared_weights = GuardedTensor(DType::F32, {num_tokens});
            shared_gate = GuardedTensor(dtype, {width, h});
            shared_up = GuardedTensor(dtype, {width, h});
            shared_down = GuardedTensor(dtype, {h, width});
        }
    }
    InputGrads input_grads() const {
        return {d_x.tensor(), d_topk_weights.tensor(), d_shared_weights.tensor()};
    }
    WeightGrads weight_grads(GradMode mode = GradMode::Overwrite) const {
        return {gate.tensor(),
                up.tensor(),
                down.tensor(),
                gate_bias.tensor(),
                up_bias.tensor(),
                down_bias.tensor(),
                shared_gate.tensor(),
                shared_up.tensor(),
                shared_down.tensor(),
                mode,
                mode};
    }
    // Visits every weight gradient with its name.
    template <class Visit>
    void for_each_weight_grad(Visit&& visit) {
        visit("d_gate", gate);
        visit("d_up", up);
        visit("d_down", down);
        visit("d_gate_bias", gate_bias);
        visit("d_up_bias", up_bias);
        visit("d_down_bias", down_bias);
        visit("d_shared_gate", shared_gate);
        visit("d_shared_up", shared_up);
        visit("d_shared_down", shared_down);
    }
    void expect_guards_intact() {
        out.expect_guards_intact("out");
        d_x.expect_guards_intact("d_x");
        d_topk_weights.expect_guards_intact("d_topk_weights");
        d_shared_weights.expect_guards_intact("d_shared_weights");
        for_each_weight_grad(
            [](const char* name, const GuardedTensor& t) { t.expect_guards_intact(name); });
    }
    // Appends this rank's tensors to a result of all ranks (the shared expert's: of one rank).
    void append_to(GlobalResult& r) const {
        const auto add = [](std::vector<float>& to, const GuardedTensor& t) {
            const std::vector<float> values = t.values();
            to.insert(to.end(), values.begin(), values.end());
        };
        for (const float v : out.values()) r.output.push_back(to_bf16(v));
        for (const float v : d_x.values()) r.d_x.push_back(to_bf16(v));
        add(r.d_topk_weights, d_topk_weights);
        add(r.d_gate, gate);
        add(r.d_up, up);
        add(r.d_down, down);
        if (gate_bias.tensor().present()) {
            add(r.d_gate_bias, gate_bias);
            add(r.d_up_bias, up_bias);
            add(r.d_down_bias, down_bias);
        }
        if (shared_gate.tensor().present()) {
            add(r.d_shared_weights, d_shared_weights);
            add(r.d_shared_gate, shared_gate);
            add(r.d_shared_up, shared_up);
            add(r.d_shared_down, shared_down);
        }
    }
    GlobalResult result() const {
        GlobalResult r;
        append_to(r);
        return r;
    }
};

// One forward and backward of tokens [first, first + num) of a case on a rank's workspace.
inline RankOutputs run_step(Workspace& w, const RandomCase& c, int64_t first, int64_t num) {
    const RankPart part = part_of(c, w, first, num);
    RankOutputs o(c, w, num);
    const Schedule schedule(w, part.ids);
    Context context;
    forward(w, schedule, part.weights, part.inputs, o.out.tensor(), context);
    backward(w, schedule, part.weights, part.inputs, part.grad_output, context, o.input_grads(),
             o.weight_grads());
    return o;
}

}  // namespace mok_test
