#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/common/random_case.h"
#include "plan/traffic.h"
#include "plan_fixture.h"

// The bytes that the CPU passes moved between ranks are those that the plan says.
namespace mok {
namespace {

using plan::Copies;
using plan::Pass;
using plan::PassKind;
using plan::Problem;
using plan::TaskKind;
using Rows = std::vector<int64_t>;  // [rank]

struct Setting {
    const char* name;
    cli::Routing routing = cli::Routing::Balanced;
    double masked = 0.0, duplicates = 0.0;
    bool even_tokens = true;
    int64_t shared_intermediate = 0;
    Tuning tuning;
    bool backward = true, split_backward = false, recompute = false;
};

constexpr int64_t kTokens = 900, kTopK = 4, kExperts = 11, kHidden = 16;
constexpr int64_t kOneRing = 131072;  // more slots than any rank has here

Tuning tuning_of(int64_t macrobatch_rows, int64_t context_rows, bool keep_x) {
    Tuning tuning;
    tuning.minibatch_rows = 128;
    tuning.macrobatch_rows = macrobatch_rows;
    tuning.context_rows = context_rows;
    tuning.keep_x = keep_x;
    tuning.max_workers = 1;
    return tuning;
}

cli::RandomCase case_of(const Setting& setting) {
    cli::CaseOptions options;
    options.shape.hidden = kHidden;
    options.shape.intermediate = 8;
    options.shape.num_experts = kExperts;
    options.shape.top_k = kTopK;
    options.shape.shared_intermediate = setting.shared_intermediate;
    options.num_tokens = kTokens;
    options.routing = setting.routing;
    options.masked = setting.masked;
    options.duplicates = setting.duplicates;
    options.backward = setting.backward;
    return cli::random_case(options);
}

cli::GlobalOptions options_of(const Setting& setting, int ranks) {
    cli::GlobalOptions options;
    options.num_ranks = ranks;
    options.tuning = setting.tuning;
    options.split_backward = setting.split_backward;
    options.recompute = setting.recompute;
    if (!setting.even_tokens && ranks > 1) {  // rank 0 has none, the last most
        options.tokens_per_rank.assign(ranks, 1);
        options.tokens_per_rank.front() = 0;
        options.tokens_per_rank.back() = kTokens - (ranks - 2);
    }
    return options;
}

// What run_global runs on every rank (cli/common/global_layer.h); a shared expert splits the
// backward.
std::vector<PassKind> passes_of(const Setting& setting) {
    std::vector<PassKind> passes = {PassKind::Forward};
    if (!setting.backward) return passes;
    if (setting.recompute) passes.push_back(PassKind::Recompute);
    if (setting.split_backward || setting.shared_intermediate > 0) {
        passes.insert(passes.end(), {PassKind::BackwardInput, PassKind::Wgrad});
    } else {
        passes.push_back(PassKind::Backward);
    }
    return passes;
}

plan::fixture::Batch batch_of(const cli::RandomCase& c, const std::vector<int64_t>& tokens) {
    plan::fixture::Batch batch;
    auto next = c.topk_ids.begin();
    for (const int64_t count : tokens) {
        batch.num_tokens.push_back(static_cast<int32_t>(count));
        batch.ids.emplace_back(next, next + count * kTopK);
        next += count * kTopK;
    }
    return batch;
}

Problem problem_of(const Setting& setting, const plan::fixture::Batch& batch, int rank) {
    const Tuning& t = setting.tuning;
    Problem p{};
    p.num_ranks = static_cast<int32_t>(batch.num_tokens.size());
    p.rank = rank;
    p.hidden = kHidden;
    p.intermediate = 8;
    p.num_experts = kExperts;
    p.top_k = kTopK;
    p.shared_intermediate = static_cast<int32_t>(setting.shared_intermediate);
    p.max_tokens = *std::max_element(batch.num_tokens.begin(), batch.num_tokens.end());
    p.num_tokens = batch.num_tokens[rank];
    p.minibatch_rows = static_cast<int32_t>(t.minibatch_rows);
    p.macrobatch_rows = static_cast<int32_t>(t.macrobatch_rows);
    p.context_rows = static_cast<int32_t>(t.context_rows < 0 ? kOneRing : t.context_rows);
    p.keep_x = t.keep_x;
    return p;
}

Rows bytes_of(Rows rows) {
    for (int64_t& n : rows) n *= kHidden * 2;
    return rows;
}

struct Moved {
    Rows pulled, pushed;  // bytes
};
Moved planned(const Setting& setting, const Problem& p, const plan::RouteTable& table) {
    Rows pulled(p.num_ranks, 0), pushed(p.num_ranks, 0);
    for (const PassKind kind : passes_of(setting)) {
        const Pass pass{kind, p, table};
        add_rows_pulled(pass, TaskKind::DispatchX, Copies::OnePerGroup, pulled.data());
        add_rows_pulled(pass, TaskKind::DispatchDY, Copies::OnePerGroup, pulled.data());
        add_rows_pushed(pass, TaskKind::CombineY, pushed.data());
        add_rows_pushed(pass, TaskKind::CombineDX, pushed.data());
    }
    return {bytes_of(pulled), bytes_of(pushed)};
}

void expect_as_planned(const Setting& setting, int ranks) {
    SCOPED_TRACE(std::string(setting.name) + ", ranks " + std::to_string(ranks));
    const cli::RandomCase c = case_of(setting);
    const cli::GlobalOptions options = options_of(setting, ranks);
    const cli::GlobalResult result = cli::run_global(c.shape, c.inputs(), options);
    const auto batch = batch_of(c, cli::split_tokens(kTokens, options));
    ASSERT_EQ(std::ssize(result.links), ranks);
    int32_t most_macrobatches = 0;
    for (int rank = 0; rank < ranks; ++rank) {
        const Problem p = problem_of(setting, batch, rank);
        const plan::fixture::OwnedTable owned(p, batch);
        ASSERT_FALSE(owned.bad.found);
        most_macrobatches = std::max(most_macrobatches, num_macrobatches(p, owned.table));
        const Moved expected = planned(setting, p, owned.table);
        EXPECT_EQ(result.links[rank].pulled, expected.pulled) << "rank " << rank;
        EXPECT_EQ(result.links[rank].pushed, expected.pushed) << "rank " << rank;
    }
    if (setting.tuning.macrobatch_rows < kOneRing) {
        EXPECT_GE(most_macrobatches, 3);
    }
}

// By settings that each switch on what another lacks.
std::vector<Setting> settings() {
    std::vector<Setting> all;
    all.push_back({.name = "forward alone", .tuning = tuning_of(256, -1, false)});
    all.back().backward = false;
    all.push_back({.name = "balanced", .tuning = tuning_of(256, -1, false)});
    all.push_back({.name = "Zipf, masked, duplicates, replay",
                   .routing = cli::Routing::Zipf,
                   .masked = 0.2,
                   .duplicates = 0.3,
                   .tuning = tuning_of(256, 128, false)});
    all.push_back({.name = "Zipf, masked, duplicates, keep_x, unequal tokens, recompute",
                   .routing = cli::Routing::Zipf,
                   .masked = 0.2,
                   .duplicates = 0.3,
                   .even_tokens = false,
                   .tuning = tuning_of(256, 384, true),
                   .recompute = true});
    all.push_back({.name = "duplicates, split backward",
                   .duplicates = 0.5,
                   .tuning = tuning_of(128, 256, true),
                   .split_backward = true});
    all.push_back({.name = "Zipf, shared expert, no context",
                   .routing = cli::Routing::Zipf,
                   .shared_intermediate = 24,
                   .tuning = tuning_of(384, 0, false)});
    all.push_back(
        {.name = "masked, one ring", .masked = 0.5, .tuning = tuning_of(kOneRing, -1, true)});
    return all;
}

class LinkBytesOf : public testing::TestWithParam<int> {};

TEST_P(LinkBytesOf, AllPassesAreAsPlanned) {
    for (const Setting& setting : settings()) expect_as_planned(setting, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ranks, LinkBytesOf, testing::Values(1, 2, 3, 8));

// The owner of every expert, handed out one rank after the other.
std::vector<int> owners(int ranks) {
    std::vector<int> owner;
    for (int r = 0; r < ranks; ++r) {
        owner.insert(owner.end(), kExperts / ranks + (r < kExperts % ranks ? 1 : 0), r);
    }
    return owner;
}

// Without the plan: where one ring and one context hold everything, a forward and a backward pull
// each token of another rank that has a choice here once for x, once more for x in the backward and
// once for d_y; own tokens go by the choice, and so does every push.
TEST(LinkBytes, OneCopyOfATokenForEveryRankThatNeedsIt) {
    const Setting setting{.name = "",
                          .routing = cli::Routing::Zipf,
                          .masked = 0.2,
                          .duplicates = 0.3,
                          .tuning = tuning_of(kOneRing, -1, false)};
    const cli::RandomCase c = case_of(setting);
    for (const int ranks : {1, 2, 3, 8}) {
        const cli::GlobalOptions options = options_of(setting, ranks);
        const cli::GlobalResult result = cli::run_global(c.shape, c.inputs(), options);
        const std::vector<int64_t> tokens = cli::split_tokens(kTokens, options);
        const std::vector<int> owner = owners(ranks);
        std::vector<Rows> routes(ranks, Rows(ranks, 0)), copies = routes;  // [expert rank][home]
        int64_t token = 0;
        for (int home = 0; home < ranks; ++home) {
            for (int64_t end = token + tokens[home]; token < end; ++token) {
                std::set<int> needed_by;
                for (int64_t choice = 0; choice < kTopK; ++choice) {
                    const int32_t id = c.topk_ids[token * kTopK + choice];
                    if (id < 0) continue;
                    ++routes[owner[id]][home];
                    const bool is_new = needed_by.insert(owner[id]).second;
                    if (is_new || owner[id] == home) ++copies[owner[id]][home];
                }
            }
        }
        for (int rank = 0; rank < ranks; ++rank) {
            SCOPED_TRACE("rank " + std::to_string(rank) + " of " + std::to_string(ranks));
            for (int home = 0; home < ranks; ++home) {
                EXPECT_EQ(result.links[rank].pulled[home], 3 * copies[rank][home] * kHidden * 2);
                EXPECT_EQ(result.links[rank].pushed[home], 2 * routes[rank][home] * kHidden * 2);
            }
        }
    }
}

}  // namespace
}  // namespace mok
