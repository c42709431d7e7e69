// Cases 15 to 19, 21 and 31: what one call leaves for another. (Case 19's memory:
// test_flat_memory.) Sanitizers: asan
#include <map>
#include <thread>

#include "comm/group_state.h"
#include "layer/state.h"
#include "layer_fixture.h"

namespace mok_test {
namespace {

// Runs body(group) on the ranks of a new group, each with a workspace of its own for `shape`.
void with_workspaces(int num_ranks, const LayerShape& shape, const Tuning& tuning,
                     int64_t max_tokens,
                     const std::function<void(const Group&, Workspace&)>& body) {
    cli::run_ranks(Group::in_process(num_ranks), [&](const Group& group) {
        Workspace w(group, shape, tuning, max_tokens);
        body(group, w);
    });
}

void poison_together(const Group& group, Workspace& w) {
    group.state().barrier(group.rank(), "barrier before poisoning");
    poison(w);
}

// A part of tensors: rank r of R has tokens [r * N / R, (r + 1) * N / R).
int64_t first_token(const RandomCase& c, const Group& g, int rank) {
    return c.num_tokens * rank / g.size();
}

RankOutputs run_own_step(const Group& g, Workspace& w, const RandomCase& c) {
    const int64_t first = first_token(c, g, g.rank());
    return run_step(w, c, first, first_token(c, g, g.rank() + 1) - first);
}

// A case's result by fresh workspaces, without what depends on the ranks' boundaries.
GlobalResult expected_of(const RandomCase& c) {
    GlobalResult r = run(c, {});
    drop_shared_gradients(r);
    return r;
}
void expect_outputs(const RandomCase& c, const std::vector<RankOutputs*>& outputs,
                    const GlobalResult& want, const std::string& what = "") {
    GlobalResult found;
    for (RankOutputs* o : outputs) {
        o->append_to(found);
        o->expect_guards_intact();
    }
    drop_shared_gradients(found);
    expect_same(c.shape, found, want, what);
}

RandomCase seeded(CaseOptions o, uint64_t seed) {
    o.seed = seed;
    return cli::random_case(o);
}

// Results depended on what the last step had left in the workspace; nothing outside an output may
// be written.
TEST(Case15, PoisonedMemoryAndStepsOfOtherSizes) {
    const RandomCase large = seeded(rich_case(300), 1), small = seeded(rich_case(40), 2);
    const GlobalResult want_large = expected_of(large), want_small = expected_of(small);
    for (const int ranks : {1, 2, 3}) {
        std::vector<std::vector<RankOutputs>> outputs(ranks);
        Tuning tuning;
        tuning.macrobatch_rows = 256;
        tuning.context_rows = 256;
        with_workspaces(ranks, large.shape, tuning, 300, [&](const Group& g, Workspace& w) {
            for (const RandomCase* c : {&large, &small, &large, &large}) {
                poison_together(g, w);
                outputs[g.rank()].push_back(run_own_step(g, w, *c));
            }
        });
        for (size_t step = 0; step < 4; ++step) {
            std::vector<RankOutputs*> all;
            for (auto& of_rank : outputs) all.push_back(&of_rank[step]);
            const bool is_small = step == 1;
            expect_outputs(is_small ? small : large, all, is_small ? want_small : want_large,
                           "step " + std::to_string(step) + ": ");
        }
    }
}

// A workspace kept counts or pointers of the largest, or of the last, size.
TEST(Case16, OneWorkspaceSweptOverSizesUpAndDown) {
    std::vector<int64_t> sizes;
    for (int64_t power = 1; power <= 4096; power *= 2) {
        for (const int64_t tokens : {power - 1, power, power + 1}) sizes.push_back(tokens);
    }
    std::vector<RandomCase> cases;
    for (const int64_t tokens : sizes) cases.push_back(seeded(case_of(tokens, 64, 32), 3));
    std::vector<size_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = sizes.size(); i-- > 0;) order.push_back(i);
    std::vector<std::vector<RankOutputs>> outputs(2);
    Tuning tuning;
    tuning.macrobatch_rows = 1024;
    tuning.context_rows = 2048;
    with_workspaces(2, cases[0].shape, tuning, 4097, [&](const Group& g, Workspace& w) {
        for (const size_t i : order) {
            const int64_t first = g.rank() == 0 ? 0 : sizes[i] / 3;
            const int64_t end = g.rank() == 0 ? sizes[i] / 3 : sizes[i];
            outputs[g.rank()].push_back(run_step(w, cases[i], first, end - first));
        }
    });
    for (size_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] == 0) continue;
        const GlobalResult want = expected_of(cases[i]);
        for (const size_t step : {i, order.size() - 1 - i}) {
            expect_outputs(cases[i], {&outputs[0][step], &outputs[1][step]}, want,
                           std::to_string(sizes[i]) + " tokens: ");
        }
    }
}

// Two calls in flight: their forwards, then their backwards in the given order. Layers that shared
// a workspace, or pipeline stages with several micro-batches, overwrote each other's saved rows.
void interleave(const RandomCase& a, const RandomCase& b, bool first_in_first_out,
                const Tuning& tuning) {
    const GlobalResult want_a = expected_of(a), want_b = expected_of(b);
    std::vector<std::map<const RandomCase*, RankOutputs>> outputs(2);
    with_workspaces(2, a.shape, tuning, 300, [&](const Group& g, Workspace& w) {
        struct Call {
            RankPart part;
            Schedule schedule;
            Context context{};
        };
        std::map<const RandomCase*, Call> calls;
        auto& own = outputs[g.rank()];
        for (const RandomCase* c : {&a, &b}) {
            const int64_t first = first_token(*c, g, g.rank());
            const int64_t num = first_token(*c, g, g.rank() + 1) - first;
            const RankPart part = part_of(*c, w, first, num);
            Call& call = calls.emplace(c, Call{part, Schedule(w, part.ids)}).first->second;
            RankOutputs& o = own.emplace(c, RankOutputs(*c, w, num)).first->second;
            poison_together(g, w);
            forward(w, call.schedule, part.weights, part.inputs, o.out.tensor(), call.context);
        }
        const auto order = first_in_first_out ? std::vector{&a, &b} : std::vector{&b, &a};
        for (const RandomCase* c : order) {
            Call& call = calls.at(c);
            const RankOutputs& o = own.at(c);
            poison_together(g, w);
            backward_input(w, call.schedule, call.part.weights, call.part.inputs,
                           call.part.grad_output, call.context, o.input_grads());
        }
        for (const RandomCase* c : order) {
            Call& call = calls.at(c);
            const RankOutputs& o = own.at(c);
            poison_together(g, w);
            wgrad(w, call.schedule, call.part.weights, call.part.inputs, call.part.grad_output,
                  call.context, o.weight_grads());
        }
    });
    expect_outputs(a, {&outputs[0].at(&a), &outputs[1].at(&a)}, want_a, "a: ");
    expect_outputs(b, {&outputs[0].at(&b), &outputs[1].at(&b)}, want_b, "b: ");
}
Tuning partial(bool keep_x) {
    Tuning t;
    t.macrobatch_rows = 256;
    t.context_rows = 128;
    t.keep_x = keep_x;
    return t;
}
TEST(Case16, TwoLayersInterleavedOnOneWorkspace) {
    interleave(seeded(rich_case(200), 4), seeded(rich_case(200), 5), false, partial(false));
    interleave(seeded(rich_case(200), 4), seeded(rich_case(90), 5), false, {});
}
TEST(Case31, TwoContextsInTheOrderF1F2B1B2) {
    const RandomCase one = seeded(rich_case(200), 6);
    RandomCase two = seeded(rich_case(150), 7);
    interleave(one, two, true, partial(false));
    interleave(one, two, true, partial(true));
}

// Disjoint groups shared a global (a barrier, a counter, a scratch) and mixed their data.
TEST(Case31, DisjointGroupsAtOnce) {
    const RandomCase a = seeded(rich_case(128), 8), b = seeded(rich_case(100), 9);
    const GlobalResult want_a = run(a, {}), want_b = run(b, {});
    for (int repeat = 0; repeat < 5; ++repeat) {
        GlobalResult found_a, found_b;
        {
            std::jthread one([&] { found_a = run(a, on_ranks(2, {128, 0})); });
            std::jthread two([&] { found_b = run(b, on_ranks(2, {0, 100})); });
        }
        expect_same(a.shape, found_a, want_a);
        expect_same(b.shape, found_b, want_b);
    }
}

// An output was a view of the workspace: the next call changed it. Inputs were read after the call.
TEST(Case17, ResultsStayAndInputsMayGo) {
    const RandomCase c = seeded(rich_case(200), 10);
    const GlobalResult want = run(c, {});
    Workspace w(Group::self(), c.shape, {}, 200);
    RandomCase mine = c;
    const auto spoil = [](RandomCase& r) {
        std::fill(r.x.begin(), r.x.end(), to_bf16(std::nanf("")));
        std::fill(r.topk_ids.begin(), r.topk_ids.end(), 12345);
        std::fill(r.topk_weights.begin(), r.topk_weights.end(), std::nanf(""));
        std::fill(r.shared_weights.begin(), r.shared_weights.end(), std::nanf(""));
        std::fill(r.grad_output.begin(), r.grad_output.end(), to_bf16(std::nanf("")));
    };
    const RankPart part = part_of(mine, w, 0, 200);
    RankOutputs o(c, w, 200);
    Context context;
    const Schedule schedule(w, part.ids);
    forward(w, schedule, part.weights, part.inputs, o.out.tensor(), context);
    spoil(mine);
    RandomCase again = c;  // the same values elsewhere
    const RankPart other = part_of(again, w, 0, 200);
    backward(w, schedule, other.weights, other.inputs, other.grad_output, context, o.input_grads(),
             o.weight_grads());
    spoil(again);
    run_step(w, seeded(rich_case(170), 11), 0, 170);
    expect_same(c.shape, o.result(), want);
}

// The order of rows came from atomics, so a recomputed forward was another one.
TEST(Case18, TheSameRoutingTwiceAndRecompute) {
    const RandomCase c = seeded(rich_case(300), 12);
    for (const int64_t context_rows : {256, -1}) {
        Tuning tuning;
        tuning.context_rows = context_rows;
        tuning.keep_x = true;
        Workspace w(Group::self(), c.shape, tuning, 300);
        const RankPart part = part_of(c, w, 0, 300);
        const Schedule a(w, part.ids), b(w, part.ids);
        const layer::Memory &table_a = a.impl().memory, &table_b = b.impl().memory;
        ASSERT_EQ(table_a.bytes(), table_b.bytes());
        EXPECT_EQ(std::memcmp(table_a.data(), table_b.data(), table_a.bytes()), 0);
        RankOutputs first(c, w, 300), second(c, w, 300);
        Context kept, made;
        forward(w, a, part.weights, part.inputs, first.out.tensor(), kept);
        poison(w);
        recompute(w, b, part.weights, part.inputs, made);
        // The real rows of gate, up and x; padding is never written.
        const Context::Impl &k = kept.impl(), &m = made.impl();
        ASSERT_EQ(k.rows, m.rows);
        for (int64_t slot = 0; slot < k.rows; ++slot) {
            if (a.impl().table.slot_home[slot] < 0) continue;
            const auto same = [&](int64_t offset, int64_t cols) {
                return std::memcmp(k.saved.at<Bf16>(offset) + slot * cols,
                                   m.saved.at<Bf16>(offset) + slot * cols, cols * 2) == 0;
            };
            ASSERT_TRUE(same(k.map.gate, 72) && same(k.map.up, 72) && same(k.map.x, 136)) << slot;
        }
        for (auto [o, schedule, context] :
             {std::tuple(&first, &a, &kept), std::tuple(&second, &b, &made)}) {
            poison(w);
            backward(w, *schedule, part.weights, part.inputs, part.grad_output, *context,
                     o->input_grads(), o->weight_grads());
        }
        forward(w, b, part.weights, part.inputs, second.out.tensor());
        expect_same(c.shape, first.result(), second.result());
        expect_same(c.shape, first.result(), run(c, {}));
    }
}

TEST(Case19, SixtyFourLayersInOneProcess) {
    const RandomCase c = seeded(case_of(16, 64, 32), 14);
    const GlobalResult want = run(c, {});
    std::vector<Workspace> layers;
    for (int i = 0; i < 64; ++i) layers.emplace_back(Group::self(), c.shape, Tuning{}, 16);
    for (int round = 0; round < 2; ++round) {
        for (Workspace& w : layers) {
            RankOutputs o = run_step(w, c, 0, 16);
            o.expect_guards_intact();
            expect_same(c.shape, o.result(), want);
        }
    }
}

// Gradients on two ranks were twice those of one: both had been summed and scaled.
TEST(Case21, TwoRanksHaveTheGradientsOfOne) {
    const RandomCase c = seeded(case_of(200), 15);
    const GlobalResult one = run(c, {}), two = run(c, on_ranks(2));
    expect_within_bounds(c, one);
    expect_same(c.shape, two, one);
    for (int64_t t = 0; t < 200; ++t) {
        ASSERT_EQ(std::memcmp(&two.d_x[t * 256], &one.d_x[t * 256], 512), 0) << "token " << t;
        for (int64_t k = 0; k < 2; ++k) {
            ASSERT_EQ(two.d_topk_weights[2 * t + k], one.d_topk_weights[2 * t + k]) << t;
        }
    }
}

}  // namespace
}  // namespace mok_test
