#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "pass_fixture.h"
#include "plan/traffic.h"
#include "plan_fixture.h"

namespace mok::plan {
namespace {

using namespace fixture;
using Rows = std::vector<int64_t>;  // [home]

Rows pulled(const Pass& pass, TaskKind kind, Copies copies) {
    Rows rows(pass.problem.num_ranks, 0);
    add_rows_pulled(pass, kind, copies, rows.data());
    return rows;
}
Rows pushed(const Pass& pass, TaskKind kind) {
    Rows rows(pass.problem.num_ranks, 0);
    add_rows_pushed(pass, kind, rows.data());
    return rows;
}

// A route to this rank and the slot that the definition gives it: an expert's routes in the order
// of (home, token, choice), each expert's list padded to 128.
struct Routed {
    int32_t home, token, slot;
};
std::vector<Routed> routed_here(const Problem& p, const Batch& batch) {
    std::vector<Routed> result;
    int32_t slot = 0;
    for (int32_t e = 0; e < p.num_experts; ++e) {
        if (expert_rank(p, e) != p.rank) continue;
        for (int32_t h = 0; h < p.num_ranks; ++h) {
            for (size_t i = 0; i < batch.ids[h].size(); ++i) {
                if (batch.ids[h][i] != e) continue;
                result.push_back({h, static_cast<int32_t>(i) / p.top_k, slot++});
            }
        }
        slot = (slot + 127) / 128 * 128;
    }
    return result;
}

// Rows between slots [from, to): all; and one a token, macrobatch and side of the context where
// they cross a link, but every one where the token is this rank's own.
struct Counts {
    Rows routes, groups;
};
Counts count_rows(const Problem& p, const std::vector<Routed>& routed, int32_t from, int32_t to) {
    Counts counts{Rows(p.num_ranks, 0), Rows(p.num_ranks, 0)};
    std::set<std::tuple<int32_t, int32_t, int32_t, bool>> seen;
    for (const Routed& r : routed) {
        if (r.slot < from || r.slot >= to) continue;
        ++counts.routes[r.home];
        if (r.home == p.rank) {
            ++counts.groups[r.home];
            continue;
        }
        const bool is_new =
            seen.insert({r.home, r.token, r.slot / p.macrobatch_rows, r.slot < p.context_rows})
                .second;
        if (is_new) ++counts.groups[r.home];
    }
    return counts;
}

TEST(Traffic, RowsOfEveryPassByBruteForce) {
    for (int32_t ranks = 1; ranks <= kMaxRanks; ++ranks) {
        for_each_routing(
            ranks, 400, 1500 + ranks,
            [](const Problem& p, const Batch& batch, const OwnedTable& owned) {
                const std::vector<Routed> routed = routed_here(p, batch);
                const int32_t kept = p.context_rows, end = INT32_MAX;
                const Counts all = count_rows(p, routed, 0, end);
                const Counts below = count_rows(p, routed, 0, kept);
                const Counts beyond = count_rows(p, routed, kept, end);
                const Counts none = count_rows(p, routed, 0, 0);
                const Counts again = p.keep_x ? beyond : all;
                const std::map<PassKind, Counts> x = {{PassKind::Forward, all},
                                                      {PassKind::Recompute, below},
                                                      {PassKind::Backward, again},
                                                      {PassKind::BackwardInput, beyond},
                                                      {PassKind::Wgrad, again}};
                const std::map<PassKind, Counts> d_y = {{PassKind::Forward, none},
                                                        {PassKind::Recompute, none},
                                                        {PassKind::Backward, all},
                                                        {PassKind::BackwardInput, all},
                                                        {PassKind::Wgrad, again}};
                for_each_pass(p, owned.table, [&](const Pass& pass) {
                    const auto expect_pulls = [&](TaskKind kind, const Counts& counts) {
                        EXPECT_EQ(pulled(pass, kind, Copies::OnePerRoute), counts.routes);
                        EXPECT_EQ(pulled(pass, kind, Copies::OnePerGroup), counts.groups);
                    };
                    expect_pulls(TaskKind::DispatchX, x.at(pass.kind));
                    expect_pulls(TaskKind::DispatchDY, d_y.at(pass.kind));
                    const bool forward = pass.kind == PassKind::Forward;
                    const bool d_x =
                        pass.kind == PassKind::Backward || pass.kind == PassKind::BackwardInput;
                    EXPECT_EQ(pushed(pass, TaskKind::CombineY), (forward ? all : none).routes);
                    EXPECT_EQ(pushed(pass, TaskKind::CombineDX), (d_x ? all : none).routes);
                });
            });
        if (HasFailure()) return;
    }
}

// In one ring, a rank pulls each token of another rank that has a choice there once, however many
// it has, and reads its own tokens once a choice.
TEST(Traffic, OneCopyPerRankWhereTheRingHoldsAll) {
    Rng rng(4);
    Problem p{};
    p.num_ranks = 4;
    p.num_experts = 16;
    p.top_k = 8;
    p.max_tokens = p.num_tokens = 200;
    p.minibatch_rows = 256;
    p.macrobatch_rows = 131072;
    const Batch batch = make_batch(p, Routing::Balanced, {200, 150, 1, 0}, rng);
    for (p.rank = 0; p.rank < 4; ++p.rank) {
        const OwnedTable owned(p, batch);
        const Pass pass{PassKind::Forward, p, owned.table};
        Rows tokens(4, 0), routes(4, 0);
        for (int32_t h = 0; h < 4; ++h) {
            for (int32_t token = 0; token < batch.num_tokens[h]; ++token) {
                int32_t here = 0;
                for (int32_t c = 0; c < 8; ++c) {
                    if (batch.ids[h][token * 8 + c] / 4 == p.rank) ++here;
                }
                routes[h] += here;
                tokens[h] += h == p.rank ? here : std::min(here, 1);
            }
        }
        EXPECT_EQ(pulled(pass, TaskKind::DispatchX, Copies::OnePerGroup), tokens);
        EXPECT_EQ(pulled(pass, TaskKind::DispatchX, Copies::OnePerRoute), routes);
        EXPECT_EQ(pushed(pass, TaskKind::CombineY), routes);
        if (p.rank != 0) {
            EXPECT_LT(tokens[0], routes[0]);
        }
    }
}

}  // namespace
}  // namespace mok::plan
