// Case 10: what a call cannot take is refused in a sentence that names the tensor, what was
// expected and what was found; nothing is written, and the group goes on.
// Sanitizers: asan tsan
#include "layer/state.h"
#include "layer_fixture.h"

namespace mok_test {
namespace {

CaseOptions small_case() {
    CaseOptions o = case_of(24, 64, 32, 6, 2);
    o.shape.shared_intermediate = 32;
    o.biases = true;
    o.shared_weights = true;
    return o;
}

// Everything that a forward and a backward are given.
struct Call {
    RankPart part;
    Tensor out;
    InputGrads d;
    WeightGrads g;
};
struct Wrong {
    const char* name;
    std::function<void(Call&)> spoil;
    std::string sentence;
};
void PrintTo(const Wrong& w, std::ostream* out) {
    *out << w.name;
}
class Case10Refused : public testing::TestWithParam<Wrong> {};

TEST_P(Case10Refused, InOneSentence) {
    const RandomCase c = cli::random_case(small_case());
    const GlobalResult want = run(c, {});
    Workspace w(Group::self(), c.shape, {}, 24);
    RankOutputs o(c, w, 24);
    const Call right{part_of(c, w, 0, 24), o.out.tensor(), o.input_grads(), o.weight_grads()};
    Call wrong = right;
    GetParam().spoil(wrong);
    Context context;
    const auto step = [&](const Call& call) {
        const Schedule schedule(w, call.part.ids);
        forward(w, schedule, call.part.weights, call.part.inputs, call.out, context);
        backward(w, schedule, call.part.weights, call.part.inputs, call.part.grad_output, context,
                 call.d, call.g);
    };
    try {
        step(wrong);
        ADD_FAILURE() << "expected a ShapeError";
    } catch (const ShapeError& e) {
        EXPECT_EQ(std::string(e.what()), GetParam().sentence);
    }
    for (const float v : o.d_x.values()) ASSERT_TRUE(std::isnan(v)) << "d_x was written";
    for (const float v : o.gate.values()) ASSERT_TRUE(std::isnan(v)) << "d_gate was written";
    step(right);
    o.expect_guards_intact();
    expect_same(c.shape, o.result(), want);
}

INSTANTIATE_TEST_SUITE_P(
    Tensors, Case10Refused,
    testing::Values(
        Wrong{"IdsDType", [](Call& c) { c.part.ids.dtype = DType::F32; },
              "topk_ids: expected dtype I32 or I64, found F32"},
        Wrong{"IdsShape", [](Call& c) { c.part.ids.shape[1] = 3; },
              "topk_ids: expected shape [24, 2], found [24, 3]"},
        Wrong{"IdsOfFewerThanNoTokens", [](Call& c) { c.part.ids.shape[0] = -1; },
              "topk_ids: expected shape [0, 2], found [-1, 2]"},
        Wrong{"XDType", [](Call& c) { c.part.inputs.x.dtype = DType::I32; },
              "x: expected dtype BF16 or F32, found I32"},
        Wrong{"XRows", [](Call& c) { c.part.inputs.x.shape[0] = 23; },
              "x: expected shape [24, 64], found [23, 64]"},
        Wrong{"XDims", [](Call& c) { c.part.inputs.x.dims = 1; },
              "x: expected shape [24, 64], found [24]"},
        Wrong{"XStride", [](Call& c) { c.part.inputs.x.stride[1] = 24; },
              "x: expected the last dimension contiguous, found stride 24"},
        Wrong{"XAbsent", [](Call& c) { c.part.inputs.x.data = nullptr; },
              "x: expected data for shape [24, 64], found none"},
        Wrong{"RouterWeightsDType", [](Call& c) { c.part.inputs.topk_weights.dtype = DType::BF16; },
              "topk_weights: expected dtype F32, found BF16"},
        Wrong{"SharedWeightsShape", [](Call& c) { c.part.inputs.shared_weights.shape[0] = 25; },
              "shared_weights: expected shape [24], found [25]"},
        Wrong{
            "GateShape",
            [](Call& c) { std::swap(c.part.weights.gate.shape[1], c.part.weights.gate.shape[2]); },
            "gate: expected shape [6, 32, 64], found [6, 64, 32]"},
        Wrong{"DownExperts", [](Call& c) { c.part.weights.down.shape[0] = 5; },
              "down: expected shape [6, 64, 32], found [5, 64, 32]"},
        Wrong{"UpDType", [](Call& c) { c.part.weights.up.dtype = DType::I64; },
              "up: expected dtype BF16 or F32, found I64"},
        Wrong{"BiasShape", [](Call& c) { c.part.weights.down_bias.shape[1] = 32; },
              "down_bias: expected shape [6, 64], found [6, 32]"},
        Wrong{"SharedUpAbsent", [](Call& c) { c.part.weights.shared_up = {}; },
              "shared_up: expected shape [32, 64], found []"},
        Wrong{"OutDType", [](Call& c) { c.out.dtype = DType::I32; },
              "out: expected dtype BF16 or F32, found I32"},
        Wrong{"OutRowsOverlap", [](Call& c) { c.out.stride[0] = 63; },
              "out: expected a stride of at least 64 in dimension 0, found 63"},
        Wrong{"DOutShape", [](Call& c) { c.part.grad_output.shape[1] = 72; },
              "d_out: expected shape [24, 64], found [24, 72]"},
        Wrong{"DXStride", [](Call& c) { c.d.x.stride[0] = 0; },
              "d_x: expected a stride of at least 1 in dimension 0, found 0"},
        Wrong{"DRouterWeightsDType", [](Call& c) { c.d.topk_weights.dtype = DType::BF16; },
              "d_topk_weights: expected dtype F32, found BF16"},
        Wrong{"DGateShape", [](Call& c) { c.g.gate.shape[0] = 7; },
              "d_gate: expected shape [6, 32, 64], found [7, 32, 64]"},
        Wrong{"DUpDType", [](Call& c) { c.g.up.dtype = DType::I32; },
              "d_up: expected dtype BF16 or F32, found I32"},
        Wrong{"ChainInBF16",
              [](Call& c) {
                  c.g.mode = GradMode::Chain;
                  c.g.down.dtype = DType::BF16;
              },
              "d_down: expected dtype F32, found BF16"}),
    [](const auto& info) { return info.param.name; });

TEST(Case10, AContextOfAnotherCallIsRefused) {
    const RandomCase c = cli::random_case(small_case());
    Workspace w(Group::self(), c.shape, {}, 24);
    const RankPart part = part_of(c, w, 0, 24), fewer = part_of(c, w, 0, 20);
    RankOutputs o(c, w, 24);
    const Schedule schedule(w, part.ids), other(w, fewer.ids);
    Context empty, context;
    const auto backward_with = [&](Context& with) {
        backward(w, schedule, part.weights, part.inputs, part.grad_output, with, o.input_grads(),
                 o.weight_grads());
    };
    EXPECT_THROW(backward_with(empty), ShapeError);
    RankOutputs few(c, w, 20);
    forward(w, other, fewer.weights, fewer.inputs, few.out.tensor(), context);
    EXPECT_THROW(backward_with(context), ShapeError);
    forward(w, schedule, part.weights, part.inputs, o.out.tensor(), context);
    EXPECT_THROW(
        wgrad(w, schedule, part.weights, part.inputs, part.grad_output, context, o.weight_grads()),
        ShapeError);
    backward_with(context);
    expect_same(c.shape, o.result(), run(c, {}));
}

std::string sentence_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const ShapeError& e) {
        return e.what();
    }
    return "";
}

// Gates of other routes were taken for the call's own where the sizes agreed.
TEST(Case10, AContextOfTheSameSizesFromAnotherScheduleIsRefused) {
    const RandomCase c = cli::random_case(small_case());
    Workspace w(Group::self(), c.shape, {}, 24), other(Group::self(), c.shape, {}, 24);
    const RankPart part = part_of(c, w, 0, 24);
    RankOutputs o(c, w, 24);
    const Schedule schedule(w, part.ids), again(w, part.ids), elsewhere(other, part.ids);
    Context context, of_again, of_elsewhere;
    forward(w, schedule, part.weights, part.inputs, o.out.tensor(), context);
    forward(w, again, part.weights, part.inputs, o.out.tensor(), of_again);
    recompute(other, elsewhere, part.weights, part.inputs, of_elsewhere);
    const auto backward_with = [&](Context& with) {
        backward(w, schedule, part.weights, part.inputs, part.grad_output, with, o.input_grads(),
                 o.weight_grads());
    };
    const std::string sizes = "(24 tokens, " + std::to_string(of_again.impl().rows) + " r";
    for (Context* wrong : {&of_again, &of_elsewhere}) {
        EXPECT_EQ(sentence_of([&] { backward_with(*wrong); }),
                  "context: expected one of this schedule " + sizes +
                      "outed rows), found one of another schedule " + sizes + "ows)");
    }
    backward_with(context);
    // Filled again, a context belongs to the schedule that filled it last.
    recompute(w, schedule, part.weights, part.inputs, of_again);
    backward_with(of_again);
    expect_same(c.shape, o.result(), run(c, {}));
}

TEST(Case10, AScheduleOfAnotherWorkspaceIsRefusedByEveryCall) {
    const RandomCase c = cli::random_case(small_case());
    Workspace w(Group::self(), c.shape, {}, 24), other(Group::self(), c.shape, {}, 24);
    const RankPart part = part_of(c, w, 0, 24);
    const Schedule s(w, part.ids);
    RankOutputs o(c, w, 24);
    Context context;
    forward(w, s, part.weights, part.inputs, o.out.tensor(), context);
    const Tensor out = o.out.tensor();
    const InputGrads d = o.input_grads();
    const WeightGrads g = o.weight_grads();
    const Weights& weights = part.weights;
    const Inputs& in = part.inputs;
    const ConstTensor& d_out = part.grad_output;
    const std::function<void()> calls[] = {
        [&] { forward(other, s, weights, in, out); },
        [&] { forward(other, s, weights, in, out, context); },
        [&] { recompute(other, s, weights, in, context); },
        [&] { backward(other, s, weights, in, d_out, context, d, g); },
        [&] { backward_input(other, s, weights, in, d_out, context, d); },
        [&] { wgrad(other, s, weights, in, d_out, context, g); },
        [&] { shared_wgrad(other, s, in, d_out, context, g); },
    };
    for (const auto& call : calls) {
        EXPECT_EQ(sentence_of(call),
                  "schedule: expected one made on this workspace, found one of another workspace");
    }
    // The context is still the forward's, and a workspace that has moved is still itself.
    Workspace moved = std::move(w);
    backward(moved, s, weights, in, d_out, context, d, g);
    expect_same(c.shape, o.result(), run(c, {}));
}

// What one rank was given wrong reached only that rank, and the others hung.
class Case10Ids : public testing::TestWithParam<std::pair<int64_t, DType>> {};
TEST_P(Case10Ids, AnIdOutOfRangeIsTheSameSentenceOnEveryRank) {
    const auto [id, dtype] = GetParam();
    const RandomCase c = cli::random_case(small_case());
    std::vector<std::string> sentences(3);
    std::vector<std::unique_ptr<RankOutputs>> outputs(3);
    cli::run_ranks(Group::in_process(3), [&](const Group& group) {
        const int r = group.rank();
        Workspace w(group, c.shape, {}, 8);
        std::vector<int64_t> wide(c.topk_ids.begin() + 16 * r, c.topk_ids.begin() + 16 * (r + 1));
        if (r == 1) wide[2 * 5 + 1] = id;
        const std::vector<int32_t> narrow(wide.begin(), wide.end());
        const void* data = dtype == DType::I64 ? static_cast<const void*>(wide.data())
                                               : static_cast<const void*>(narrow.data());
        try {
            const Schedule schedule(w, ConstTensor(data, dtype, {8, 2}));
        } catch (const ShapeError& e) {
            sentences[r] = e.what();
        }
        // The group goes on.
        outputs[r] = std::make_unique<RankOutputs>(run_step(w, c, 8 * r, 8));
    });
    EXPECT_EQ(sentences[0],
              "topk_ids of rank 1, token 5, choice 1: expected -1 or an expert below "
              "6, found " +
                  std::to_string(id));
    EXPECT_EQ(sentences[1], sentences[0]);
    EXPECT_EQ(sentences[2], sentences[0]);
    GlobalResult found, want = run(c, {});
    for (const auto& o : outputs) o->append_to(found);
    drop_shared_gradients(found);
    drop_shared_gradients(want);
    expect_same(c.shape, found, want);
}
INSTANTIATE_TEST_SUITE_P(Ids, Case10Ids,
                         testing::Values(std::pair{6, DType::I32}, std::pair{-2, DType::I32},
                                         std::pair{2147483647, DType::I32},
                                         std::pair{6, DType::I64}, std::pair{-2, DType::I64},
                                         std::pair{(int64_t{1} << 32) + 3, DType::I64},
                                         std::pair{-(int64_t{1} << 40), DType::I64},
                                         std::pair{INT64_MAX, DType::I64},
                                         std::pair{INT64_MIN, DType::I64}));

TEST(Case10, MoreTokensThanTheWorkspaceTakes) {
    const RandomCase c = cli::random_case(small_case());
    std::vector<std::string> sentences(2);
    cli::run_ranks(Group::in_process(2), [&](const Group& group) {
        Workspace w(group, c.shape, {}, 12);
        const RankPart part = part_of(c, w, 0, group.rank() == 1 ? 13 : 2);
        try {
            const Schedule schedule(w, part.ids);
        } catch (const ShapeError& e) {
            sentences[group.rank()] = e.what();
        }
        run_step(w, c, 12 * group.rank(), 12);
    });
    EXPECT_EQ(sentences[0],
              "topk_ids of rank 1: expected at most 12 tokens (the workspace's "
              "maximum), found 13");
    EXPECT_EQ(sentences[1], sentences[0]);
}

// Ranks that disagree met different numbers of barriers; also where one rank's shape breaks a rule.
TEST(Case10, RanksThatDisagreeAllThrow) {
    const LayerShape good = small_case().shape;
    LayerShape wider = good, broken = good;
    wider.hidden = 72;
    broken.top_k = 0;
    for (const LayerShape& other : {wider, broken}) {
        std::vector<std::string> sentences(3);
        cli::run_ranks(Group::in_process(3), [&](const Group& group) {
            try {
                Workspace w(group, group.rank() == 2 ? other : good, {}, 8);
            } catch (const ShapeError& e) {
                sentences[group.rank()] = e.what();
            }
        });
        for (const std::string& sentence : sentences) {
            EXPECT_EQ(sentence,
                      "workspace: rank 2 was given another shape, tuning or max_tokens than "
                      "rank 0");
        }
    }
}

}  // namespace
}  // namespace mok_test
