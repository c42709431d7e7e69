// Cases 1 to 9 and 11: routings and counts. Each names what broke elsewhere.
// Sanitizers: asan
#include "layer_fixture.h"

namespace mok_test {
namespace {

RandomCase with_counts(const std::vector<int64_t>& counts) {
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    CaseOptions o = case_of(rows, 256, 128, std::ssize(counts), 1);
    o.biases = true;
    RandomCase c = cli::random_case(o);
    set_ids(c, ids_with_counts(counts, 5));
    return c;
}

bool all_zero(const std::vector<float>& t, int64_t first, int64_t num) {
    return std::all_of(t.begin() + first, t.begin() + first + num,
                       [](float v) { return std::bit_cast<uint32_t>(v) == 0; });
}

// An expert without tokens kept the previous step's weight gradient, or NaN from its scratch.
TEST(Case1, AnExpertWithoutTokensHasZeroGradients) {
    const std::vector<int64_t> counts{162, 0, 2577, 446, 0, 83};
    const RandomCase c = with_counts(counts);
    for (const int ranks : {1, 2, 5}) {
        const GlobalResult r = expect_right(c, on_ranks(ranks));
        for (const int64_t e : {1, 4}) {
            EXPECT_TRUE(all_zero(r.d_gate, e * 128 * 256, 128 * 256));
            EXPECT_TRUE(all_zero(r.d_up, e * 128 * 256, 128 * 256));
            EXPECT_TRUE(all_zero(r.d_down, e * 128 * 256, 128 * 256));
            EXPECT_TRUE(all_zero(r.d_gate_bias, e * 128, 128));
            EXPECT_TRUE(all_zero(r.d_up_bias, e * 128, 128));
            EXPECT_TRUE(all_zero(r.d_down_bias, e * 256, 256));
        }
        for (size_t e = 0; e < counts.size(); ++e) EXPECT_EQ(r.tokens_per_expert[e], counts[e]);
    }
}

// Row counts that are no multiple of a tile read the next expert's rows.
TEST(Case2, CountsThatFillNoTile) {
    const RandomCase c = with_counts({1, 7, 8, 32, 33, 44, 63, 65, 127});
    for (const int ranks : {1, 2, 3}) expect_right(c, on_ranks(ranks));
}

// A rank without tokens or rows skipped a collective call and hung the others.
TEST(Case3, ARankWithoutTokensOfItsOwn) {
    const RandomCase c = cli::random_case(case_of(300));
    expect_right(c, on_ranks(2, {0, 300}));
    expect_right(c, on_ranks(3, {150, 0, 150}));
    expect_right(c, on_ranks(2, {300, 0}));
}
TEST(Case3, ARankWhoseExpertsGetNoTokens) {
    RandomCase c = cli::random_case(case_of(300));
    std::vector<int32_t> ids = c.topk_ids;
    for (int32_t& id : ids) id %= 4;  // the first of two ranks owns experts 0 to 3
    set_ids(c, ids);
    expect_right(c, on_ranks(2));
    for (int32_t& id : ids) id += 4;
    set_ids(c, ids);
    expect_right(c, on_ranks(2));
}
TEST(Case3, NoRoutesAnywhere) {
    CaseOptions o = rich_case(50);
    o.routing = Routing::Empty;
    const RandomCase c = cli::random_case(o);
    for (const int ranks : {1, 3}) {
        const GlobalResult r = expect_right(c, on_ranks(ranks));
        EXPECT_TRUE(all_zero(r.d_gate, 0, std::ssize(r.d_gate)));
        EXPECT_TRUE(all_zero(r.d_topk_weights, 0, std::ssize(r.d_topk_weights)));
    }
}
TEST(Case3, NoTokensAnywhere) {
    const RandomCase c = cli::random_case(case_of(0));
    for (const int ranks : {1, 3}) {
        std::vector<Group> groups = Group::in_process(ranks);
        cli::run_ranks(groups, [&c](const Group& group) {
            Workspace w(group, c.shape, {}, 16);
            poison(w);
            RankOutputs o = run_step(w, c, 0, 0);
            o.expect_guards_intact();
            const std::vector<float> grads = o.gate.values();
            EXPECT_EQ(std::ssize(grads), w.num_local_experts() * 128 * 256);
            EXPECT_TRUE(all_zero(grads, 0, std::ssize(grads)));
            EXPECT_TRUE(all_zero(o.down.values(), 0, std::ssize(grads)));
        });
    }
}

// Buffers sized for a share of the routes overflowed when one expert or rank took them all.
TEST(Case4, EveryTokenToOneExpert) {
    CaseOptions o = case_of(300);
    o.routing = Routing::OneExpert;
    const RandomCase c = cli::random_case(o);
    for (const int ranks : {1, 2, 3}) expect_right(c, on_ranks(ranks));
}
TEST(Case4, EveryTokenToOneRank) {
    RandomCase c = cli::random_case(case_of(300));
    std::vector<int32_t> ids = c.topk_ids;
    for (size_t r = 0; r < ids.size(); ++r) ids[r] = 2 + static_cast<int32_t>(r % 2);
    set_ids(c, ids);
    for (const int ranks : {2, 4}) expect_right(c, on_ranks(ranks));
}
TEST(Case4, ZipfRouting) {
    CaseOptions o = case_of(500);
    o.routing = Routing::Zipf;
    expect_right(cli::random_case(o), on_ranks(4));
}
TEST(Case4, ARankThatOwnsNoExpert) {
    const RandomCase c = cli::random_case(case_of(120, 256, 128, 3));
    expect_right(c, on_ranks(5));
    expect_right(c, on_ranks(4, {0, 0, 0, 120}));
}

// Ranks with unequal token counts deadlocked, or were padded to the largest and trained on padding.
class Case5 : public testing::TestWithParam<std::vector<int64_t>> {};
TEST_P(Case5, UnequalTokensPerRank) {
    const int64_t tokens = std::accumulate(GetParam().begin(), GetParam().end(), int64_t{0});
    CaseOptions o = tokens < 1000 ? case_of(tokens) : case_of(tokens, 64, 32);
    o.shape.shared_intermediate = 64;
    expect_right(cli::random_case(o), on_ranks(static_cast<int>(GetParam().size()), GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Splits, Case5,
                         testing::Values(std::vector<int64_t>{5, 6}, std::vector<int64_t>{1, 4096},
                                         std::vector<int64_t>{0, 17},
                                         std::vector<int64_t>{4095, 4095},
                                         std::vector<int64_t>{1, 3, 5, 63}));

// A masked choice with a NaN weight poisoned its token: 0 * NaN.
TEST(Case6, MaskedChoicesContributeNothing) {
    CaseOptions o = case_of(200, 256, 128, 8, 3);
    o.masked = 0.5;
    const RandomCase c = cli::random_case(o);
    for (const int ranks : {1, 3}) {
        const GlobalResult r = expect_right(c, on_ranks(ranks));
        int64_t masked = 0;
        for (size_t route = 0; route < c.topk_ids.size(); ++route) {
            if (c.topk_ids[route] >= 0) continue;
            ++masked;
            ASSERT_TRUE(std::isnan(c.topk_weights[route]));
            EXPECT_EQ(std::bit_cast<uint32_t>(r.d_topk_weights[route]), 0u) << route;
        }
        EXPECT_GT(masked, 200);
    }
}

// Two choices of one expert were merged, and one of them lost its weight or its gradient.
TEST(Case7, DuplicateIdsInOneTokenBothCount) {
    RandomCase c = cli::random_case(case_of(2));
    c.topk_ids = {3, 3, 5, 3};
    c.topk_weights = {0.4f, 0.3f, 0.4f, 0.3f};
    for (const int ranks : {1, 2, 3}) {
        const GlobalResult r = expect_right(c, on_ranks(ranks));
        EXPECT_EQ(r.tokens_per_expert[3], 3);
        // Both choices see the same y and d_y: <d_y, y> is the same number.
        EXPECT_EQ(r.d_topk_weights[0], r.d_topk_weights[1]);
        EXPECT_NE(r.d_topk_weights[0], 0.0f);
    }
}
TEST(Case7, ManyDuplicates) {
    CaseOptions o = case_of(300, 256, 128, 8, 4);
    o.duplicates = 0.7;
    for (const int ranks : {1, 3}) expect_right(cli::random_case(o), on_ranks(ranks));
}

// K = 1 had no router gradient (a softmax over one), K > 8 overran an array of choices; weights
// of zero lost their gradient where it was divided out of the output's.
class Case8 : public testing::TestWithParam<std::pair<int64_t, int64_t>> {};  // E, K
TEST_P(Case8, NumberOfChoicesAndOddWeights) {
    const auto [experts, top_k] = GetParam();
    RandomCase c = cli::random_case(case_of(90, 256, 128, experts, top_k));
    const float weights[] = {-0.7f, 0.0f, 1e-30f, 0.5f, -1e-30f, -0.0f, 1.0f};
    for (size_t r = 0; r < c.topk_weights.size(); ++r) c.topk_weights[r] = weights[r % 7];
    for (const int ranks : {1, 2}) {
        const GlobalResult r = expect_right(c, on_ranks(ranks));
        for (const float d : r.d_topk_weights) EXPECT_NE(d, 0.0f);
    }
}
INSTANTIATE_TEST_SUITE_P(Choices, Case8,
                         testing::Values(std::pair{8, 1}, std::pair{16, 8}, std::pair{32, 16},
                                         std::pair{16, 16}, std::pair{3, 3}, std::pair{1, 1}));

// Experts were assumed to divide by the ranks, and both to be powers of two.
struct Spread {
    int64_t experts;
    int ranks;
};
class Case9 : public testing::TestWithParam<Spread> {};
TEST_P(Case9, AnyNumberOfExpertsOnAnyNumberOfRanks) {
    const auto [experts, ranks] = GetParam();
    const int64_t top_k = std::min<int64_t>(experts, 3);
    expect_right(cli::random_case(case_of(150, 64, 32, experts, top_k)), on_ranks(ranks));
}
INSTANTIATE_TEST_SUITE_P(Spreads, Case9,
                         testing::Values(Spread{8, 3}, Spread{10, 7}, Spread{1, 1}, Spread{1, 2},
                                         Spread{1024, 1}, Spread{1024, 4}, Spread{96, 1},
                                         Spread{192, 2}, Spread{16, 5}, Spread{16, 6},
                                         Spread{16, 7}, Spread{16, 12}, Spread{16, 72},
                                         Spread{100, 72}),
                         [](const auto& info) {
                             std::string name("E");
                             name.append(std::to_string(info.param.experts)).append("R");
                             return name.append(std::to_string(info.param.ranks));
                         });

// Combine used the expert rank's own routing, which is the same where all ranks route alike.
TEST(Case11, EveryRankRoutesInItsOwnWay) {
    const int ranks = 4;
    RandomCase c = cli::random_case(case_of(160));
    std::vector<int32_t> ids(c.topk_ids.size());
    for (int64_t token = 0; token < 160; ++token) {
        const int64_t rank = token / 40;
        // Rank 0: one expert; 1: two of its own; 2: another's, one choice masked; 3: round robin.
        ids[2 * token] = static_cast<int32_t>(rank < 3 ? (5 * rank + 7) % 8 : token % 8);
        ids[2 * token + 1] = static_cast<int32_t>(rank == 2 ? -1 : (rank + token * rank) % 8);
    }
    set_ids(c, ids);
    expect_right(c, on_ranks(ranks));
    expect_right(c, on_ranks(ranks, {40, 80, 0, 40}));
}

}  // namespace
}  // namespace mok_test
