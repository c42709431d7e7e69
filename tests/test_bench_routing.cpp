#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "cli/bench/bench_shapes.h"
#include "cli/bench/timed_layer.h"

// Routings and shapes of the benchmarks.
namespace mok::cli {
namespace {

using Kind = RoutingChoice::Kind;

LayerShape layer(int64_t experts, int64_t top_k) {
    LayerShape shape;
    shape.hidden = shape.intermediate = 8;
    shape.num_experts = experts;
    shape.top_k = top_k;
    return shape;
}

std::vector<int64_t> counts_of(const std::vector<int32_t>& ids, int64_t experts) {
    std::vector<int64_t> counts(experts, 0);
    for (const int32_t id : ids) ++counts.at(id);
    return counts;
}

bool has_distinct_choices(const std::vector<int32_t>& ids, int64_t top_k) {
    for (size_t token = 0; token < ids.size(); token += top_k) {
        const std::set<int32_t> row(ids.begin() + token, ids.begin() + token + top_k);
        if (std::ssize(row) != top_k) return false;
    }
    return true;
}

TEST(Routing, ReadsAndWritesItsNames) {
    EXPECT_EQ(parse_routing("balanced"), RoutingChoice());
    EXPECT_EQ(parse_routing("zipf:0.5"), (RoutingChoice{Kind::Zipf, 0.5}));
    EXPECT_EQ(parse_routing("one-rank").kind, Kind::OneRank);
    for (const char* text : {"balanced", "zipf:1.2", "zipf:0", "zipf:4", "one-rank"}) {
        EXPECT_EQ(routing_text(parse_routing(text)), text);
    }
    for (const char* text : {"", "zipf", "zipf:", "zipf:x", "zipf:-1", "zipf:1.2x", "zipf:nan",
                             "zipf:inf", "zipf:4.1", "Balanced", "one-rank "}) {
        EXPECT_THROW(parse_routing(text), std::invalid_argument) << text;
    }
}

TEST(Routing, DrawsDistinctExpertsByTheirWeights) {
    constexpr int64_t kExperts = 32, kTopK = 1, kTokens = 20000;
    const LayerShape shape = layer(kExperts, kTopK);
    for (const double exponent : {0.0, 1.2}) {
        const auto ids = routed_ids({Kind::Zipf, exponent}, shape, 2, kTokens, 7);
        ASSERT_EQ(std::ssize(ids), 2 * kTokens * kTopK);
        double sum = 0.0;
        for (int64_t e = 0; e < kExperts; ++e) sum += std::pow(e + 1.0, -exponent);
        const std::vector<int64_t> counts = counts_of(ids, kExperts);
        for (int64_t e = 0; e < kExperts; ++e) {
            const double share = std::pow(e + 1.0, -exponent) / sum;
            const double mean = 2 * kTokens * share;
            const double deviation = std::sqrt(mean * (1.0 - share));
            EXPECT_NEAR(static_cast<double>(counts[e]), mean, 5 * deviation) << e;
        }
    }
    const auto ids = routed_ids({Kind::Zipf, 1.2}, layer(12, 8), 1, 500, 7);
    EXPECT_TRUE(has_distinct_choices(ids, 8));
    EXPECT_EQ(ids, routed_ids({Kind::Zipf, 1.2}, layer(12, 8), 1, 500, 7));
    EXPECT_NE(ids, routed_ids({Kind::Zipf, 1.2}, layer(12, 8), 1, 500, 8));
}

TEST(Routing, OneRankIsTheLastThatOwnsExperts) {
    // 10 experts on 4 ranks: 3, 3, 2, 2.
    const auto ids = routed_ids({Kind::OneRank, 0.0}, layer(10, 2), 4, 100, 1);
    EXPECT_EQ(ids.size(), 800u);
    EXPECT_EQ(*std::ranges::min_element(ids), 8);
    EXPECT_EQ(*std::ranges::max_element(ids), 9);
    EXPECT_TRUE(has_distinct_choices(ids, 2));
    // More choices than experts there.
    const auto repeated = routed_ids({Kind::OneRank, 0.0}, layer(10, 5), 4, 100, 1);
    EXPECT_EQ(*std::ranges::min_element(repeated), 8);
    EXPECT_EQ(*std::ranges::max_element(repeated), 9);
    // Fewer experts than ranks.
    const auto one = routed_ids({Kind::OneRank, 0.0}, layer(2, 1), 4, 100, 1);
    EXPECT_EQ(*std::ranges::min_element(one), 1);
    EXPECT_EQ(*std::ranges::max_element(one), 1);
}

TEST(Routing, WeightsOfATokenAddUpToOne) {
    BenchCase c;
    c.shape = layer(12, 3);
    c.num_ranks = 2;
    c.tokens_per_rank = 50;
    draw_routing(c);
    ASSERT_EQ(c.topk_ids.size(), 300u);
    ASSERT_EQ(c.topk_weights.size(), 300u);
    for (size_t t = 0; t < 300; t += 3) {
        EXPECT_NEAR(c.topk_weights[t] + c.topk_weights[t + 1] + c.topk_weights[t + 2], 1.0, 1e-6);
        EXPECT_GT(*std::min_element(&c.topk_weights[t], &c.topk_weights[t] + 3), 0.0f);
    }
}

TEST(BenchShapes, SlicesHoldTheExpertsOfAGpuOf64) {
    struct Want {
        const char* name;
        int64_t hidden, intermediate, per_rank, top_k;
    };
    // Experts of a GPU at 64: 384/64, 256/64, 512/64, 384/64; two GPUs' where there is one.
    const std::vector<Want> wants = {{"kimi-k2.7-slice", 7168, 2048, 6, 8},
                                     {"glm-5.2-slice", 6144, 2048, 4, 8},
                                     {"qwen3.5-397b-slice", 4096, 1024, 8, 10},
                                     {"deepseek-v4-pro-slice", 7168, 3072, 6, 6}};
    for (const int ranks : {1, 2, 8}) {
        const std::vector<NamedShape> shapes = shape_list("slices", ranks);
        ASSERT_EQ(shapes.size(), wants.size());
        for (size_t i = 0; i < wants.size(); ++i) {
            EXPECT_EQ(shapes[i].name, wants[i].name);
            EXPECT_EQ(shapes[i].shape.hidden, wants[i].hidden);
            EXPECT_EQ(shapes[i].shape.intermediate, wants[i].intermediate);
            EXPECT_EQ(shapes[i].shape.num_experts, wants[i].per_rank * std::max(ranks, 2));
            EXPECT_EQ(shapes[i].shape.top_k, wants[i].top_k);
            EXPECT_EQ(shapes[i].shape.shared_intermediate, 0);
        }
    }
    EXPECT_EQ(shape_list("full", 1)[0].shape.num_experts, 384);
}

TEST(BenchShapes, SonicHasNineThatKeepTheWork) {
    const std::vector<NamedShape> shapes = shape_list("sonic", 1);
    ASSERT_EQ(shapes.size(), 9u);
    // In each group of three the granularity changes and I * K stays.
    for (size_t i = 0; i < 9; ++i) {
        const LayerShape &s = shapes[i].shape, &first = shapes[i / 3 * 3].shape;
        EXPECT_EQ(s.intermediate * s.top_k, first.intermediate * first.top_k);
        EXPECT_EQ(shapes[i].tokens, i < 3 ? 24576 : 32768);
        EXPECT_EQ(s.hidden, i < 3 ? 1536 : 4096);
    }
    EXPECT_THROW(shape_list("small", 1), std::invalid_argument);
}

TEST(BenchShapes, FusedHasTheTwoOfEightGpus) {
    const std::vector<NamedShape> shapes = shape_list("fused", 8);
    ASSERT_EQ(shapes.size(), 2u);
    EXPECT_EQ(shapes[0].name, "comet-8192-8192-32-4");
    EXPECT_EQ(shapes[0].tokens, 1024);  // of 8,192 in all
    EXPECT_EQ(shape_list("fused", 1)[0].tokens, 8192);
    EXPECT_EQ(shapes[1].name, "flashdmoe-2048-2048-32-2");
    EXPECT_EQ(shapes[1].tokens, 8192);
}

}  // namespace
}  // namespace mok::cli
