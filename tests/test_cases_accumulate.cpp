// Case 20: weight gradients are added to what the caller has, once and rounded once.
// Sanitizers: asan
#include "layer_fixture.h"

namespace mok_test {
namespace {

std::vector<float> random_values(size_t count, DType dtype, uint64_t seed) {
    cli::Random random(seed);
    std::vector<float> values(count);
    for (float& v : values) {
        v = static_cast<float>(3.0 * random.normal());
        if (dtype == DType::BF16) v = to_f32(to_bf16(v));
    }
    return values;
}
bool same_bits(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}
float rounded(float v, DType dtype) {
    return dtype == DType::BF16 ? to_f32(to_bf16(v)) : v;
}

// A case on one rank whose expert 2 gets no rows. macrobatch_rows of 256 splits experts.
struct Step {
    RandomCase c;
    Workspace w;
    RankPart part;
    Schedule schedule;

    static RandomCase make_case() {
        CaseOptions o = rich_case(400);
        RandomCase made = cli::random_case(o);
        std::vector<int32_t> ids = made.topk_ids;
        for (int32_t& id : ids) id = id == 2 ? 3 : id;
        set_ids(made, ids);
        return made;
    }
    static Tuning make_tuning() {
        Tuning t;
        t.macrobatch_rows = 256;
        return t;
    }
    Step()
        : c(make_case()),
          w(Group::self(), c.shape, make_tuning(), 400),
          part(part_of(c, w, 0, 400)),
          schedule(w, part.ids) {}

    void backward_into(RankOutputs& o, GradMode mode, bool split) {
        Context context;
        forward(w, schedule, part.weights, part.inputs, o.out.tensor(), context);
        if (!split) {
            backward(w, schedule, part.weights, part.inputs, part.grad_output, context,
                     o.input_grads(), o.weight_grads(mode));
            return;
        }
        backward_input(w, schedule, part.weights, part.inputs, part.grad_output, context,
                       o.input_grads());
        wgrad(w, schedule, part.weights, part.inputs, part.grad_output, context,
              o.weight_grads(mode));
    }
    // The passes' FP32 sums, by name.
    std::vector<std::vector<float>> sums() {
        RankOutputs o(c, w, 400, DType::F32);
        backward_into(o, GradMode::Overwrite, false);
        std::vector<std::vector<float>> all;
        o.for_each_weight_grad([&](const char*, GuardedTensor& t) { all.push_back(t.values()); });
        return all;
    }
};

struct Mode {
    DType dtype;
    bool split;
};
class Case20 : public testing::TestWithParam<Mode> {};

// Adding BF16 partial sums, or adding per macrobatch, rounded more than once.
TEST_P(Case20, NewIsOldPlusGradientRoundedOnce) {
    const auto [dtype, split] = GetParam();
    Step step;
    const std::vector<std::vector<float>> g = step.sums();
    RankOutputs o(step.c, step.w, 400, dtype);
    std::vector<std::vector<float>> old;
    o.for_each_weight_grad([&](const char*, GuardedTensor& t) {
        old.push_back(random_values(g[old.size()].size(), dtype, old.size()));
        t.set(old.back());
    });
    // Once, and once more on top: two passes add up.
    for (int pass = 0; pass < 2; ++pass) {
        step.backward_into(o, GradMode::Accumulate, split);
        size_t tensor = 0;
        o.for_each_weight_grad([&](const char* name, GuardedTensor& t) {
            const std::vector<float> found = t.values();
            for (size_t i = 0; i < found.size(); ++i) {
                const float want = rounded(old[tensor][i] + g[tensor][i], dtype);
                ASSERT_TRUE(same_bits(found[i], want))
                    << name << "[" << i << "], pass " << pass << ": found " << found[i]
                    << ", expected " << want;
            }
            old[tensor++] = found;
        });
    }
    o.expect_guards_intact();
}

// Overwriting needs no old value: NaN there must not survive.
TEST_P(Case20, OverwriteRoundsTheSumOnce) {
    const auto [dtype, split] = GetParam();
    Step step;
    const std::vector<std::vector<float>> g = step.sums();
    RankOutputs o(step.c, step.w, 400, dtype);  // NaN to begin with
    step.backward_into(o, GradMode::Overwrite, split);
    size_t tensor = 0;
    o.for_each_weight_grad([&](const char* name, GuardedTensor& t) {
        const std::vector<float> found = t.values();
        for (size_t i = 0; i < found.size(); ++i) {
            ASSERT_TRUE(same_bits(found[i], rounded(g[tensor][i], dtype))) << name << i;
        }
        ++tensor;
    });
    o.expect_guards_intact();
}

// An expert without rows had 0 added: -0 became +0, NaN payloads changed.
TEST_P(Case20, AnExpertWithoutRowsIsNotTouched) {
    const auto [dtype, split] = GetParam();
    Step step;
    RankOutputs o(step.c, step.w, 400, dtype);
    const float negative_zero = -0.0f;
    o.for_each_weight_grad([&](const char*, GuardedTensor& t) {
        t.set(std::vector<float>(t.values().size(), negative_zero));
    });
    step.backward_into(o, GradMode::Accumulate, split);
    const auto expect_untouched = [&](const GuardedTensor& t, int64_t per_expert) {
        const std::vector<float> found = t.values();
        for (int64_t i = 2 * per_expert; i < 3 * per_expert; ++i) {
            ASSERT_TRUE(same_bits(found[i], negative_zero)) << i;
        }
        EXPECT_NE(found[3 * per_expert], 0.0f) << "expert 3 has rows";
    };
    expect_untouched(o.gate, 72 * 136);
    expect_untouched(o.up, 72 * 136);
    expect_untouched(o.down, 72 * 136);
    expect_untouched(o.gate_bias, 72);
    expect_untouched(o.up_bias, 72);
    expect_untouched(o.down_bias, 136);
}

INSTANTIATE_TEST_SUITE_P(Modes, Case20,
                         testing::Values(Mode{DType::F32, false}, Mode{DType::F32, true},
                                         Mode{DType::BF16, false}, Mode{DType::BF16, true}),
                         [](const auto& info) {
                             return std::string(dtype_name(info.param.dtype)) +
                                    (info.param.split ? "Split" : "Whole");
                         });

// A gradient that is not asked for is not computed, and the others keep their bits.
TEST(Case20, AbsentGradientsAreNotAskedFor) {
    Step step;
    const std::vector<std::vector<float>> g = step.sums();
    RankOutputs o(step.c, step.w, 400);
    Context context;
    forward(step.w, step.schedule, step.part.weights, step.part.inputs, o.out.tensor(), context);
    WeightGrads some;
    some.up = o.up.tensor();
    some.down_bias = o.down_bias.tensor();
    backward(step.w, step.schedule, step.part.weights, step.part.inputs, step.part.grad_output,
             context, {}, some);
    EXPECT_EQ(o.up.values(), g[1]);
    EXPECT_EQ(o.down_bias.values(), g[5]);
    EXPECT_TRUE(std::isnan(o.gate.values()[0]));
    EXPECT_TRUE(std::isnan(o.d_x.values()[0]));
}

}  // namespace
}  // namespace mok_test
