#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "plan_fixture.h"

namespace mok::plan {
namespace {

using namespace fixture;

// The definition, literally: all routes in a list, sorted, cut by expert, padded.
struct Route {
    int32_t expert, home, token, choice;
    auto operator<=>(const Route&) const = default;
};

std::vector<Route> sorted_routes(const Problem& p, const Batch& batch) {
    std::vector<Route> routes;
    for (int32_t h = 0; h < p.num_ranks; ++h) {
        for (int32_t i = 0; i < static_cast<int32_t>(batch.ids[h].size()); ++i) {
            routes.push_back({batch.ids[h][i], h, i / p.top_k, i % p.top_k});
        }
    }
    std::sort(routes.begin(), routes.end());
    return routes;
}

// Owner of an expert by handing the experts out one rank after the other.
std::vector<int32_t> owners(int32_t experts, int32_t ranks) {
    std::vector<int32_t> owner;
    for (int32_t r = 0; r < ranks; ++r) {
        const int32_t own = experts / ranks + (r < experts % ranks ? 1 : 0);
        owner.insert(owner.end(), own, r);
    }
    return owner;
}

void expect_slots_by_definition(const Problem& p, const Batch& batch, const RouteTable& t) {
    const std::vector<Route> routes = sorted_routes(p, batch);
    const std::vector<int32_t> owner = owners(p.num_experts, p.num_ranks);
    int32_t slot = 0, local = 0;
    for (int32_t e = 0; e < p.num_experts; ++e) {
        if (owner[e] != p.rank) continue;
        ASSERT_EQ(t.segment_begin[local], slot);
        int32_t rows = 0;
        std::vector<int32_t> of_home(p.num_ranks + 1, 0);
        for (const Route& route : routes) {
            if (route.expert != e) continue;
            ASSERT_EQ(t.slot_home[slot], route.home) << "slot " << slot;
            ASSERT_EQ(t.slot_route[slot], route.token * p.top_k + route.choice) << "slot " << slot;
            ASSERT_EQ(t.tile_expert[slot / 128], local);
            ++of_home[route.home + 1];
            ++rows, ++slot;
        }
        ASSERT_EQ(segment_rows(p, t, local), rows);
        for (int32_t h = 0, sum = 0; h <= p.num_ranks; ++h) {
            sum += of_home[h];
            ASSERT_EQ(t.home_begin[local * (p.num_ranks + 1) + h], sum);
        }
        for (int32_t tile = t.segment_begin[local] / 128; tile * 128 < slot; ++tile) {
            ASSERT_EQ(tile_rows(p, t, tile), std::min(128, slot - tile * 128));
        }
        for (; slot % 128 != 0; ++slot) {
            ASSERT_EQ(t.slot_home[slot], -1);
            ASSERT_EQ(t.slot_lead[slot], slot);
            ASSERT_EQ(t.slot_next[slot], -1);
            ASSERT_EQ(t.tile_expert[slot / 128], local);
        }
        ++local;
    }
    ASSERT_EQ(local, num_local_experts(p));
    ASSERT_EQ(num_slots(t), slot);
    ASSERT_LE(num_slots(t), max_slots(p));
    for (int32_t h = 0; h < p.num_ranks; ++h) ASSERT_EQ(t.num_tokens[h], batch.num_tokens[h]);
}

// Groups by (home, token, macrobatch, side of C), each in visiting order, for tokens of other
// ranks; every slot of a token of this rank is alone.
void expect_pull_groups_by_definition(const Problem& p, const RouteTable& t) {
    using Key = std::tuple<int32_t, int32_t, int32_t, bool>;
    std::map<Key, std::vector<std::pair<int32_t, int32_t>>> groups;  // (visit, slot)
    for (int32_t slot = 0; slot < num_slots(t); ++slot) {
        if (t.slot_home[slot] < 0) continue;
        if (t.slot_home[slot] == p.rank) {
            ASSERT_EQ(t.slot_lead[slot], slot);
            ASSERT_EQ(t.slot_next[slot], -1) << "slot " << slot;
            continue;
        }
        const int32_t visit = visit_of_tile(p, t, slot / 128) * 128 + slot % 128;
        groups[{t.slot_home[slot], t.slot_route[slot] / p.top_k, slot / p.macrobatch_rows,
                slot < p.context_rows}]
            .push_back({visit, slot});
    }
    for (auto& [key, members] : groups) {
        std::sort(members.begin(), members.end());
        for (size_t i = 0; i < members.size(); ++i) {
            const int32_t slot = members[i].second;
            ASSERT_EQ(t.slot_lead[slot], members[0].second) << "slot " << slot;
            ASSERT_EQ(t.slot_next[slot], i + 1 < members.size() ? members[i + 1].second : -1)
                << "slot " << slot;
        }
    }
}

void expect_right(const Problem& p, const Batch& batch, const OwnedTable& owned) {
    ASSERT_FALSE(owned.bad.found);
    EXPECT_TRUE(owned.guards_intact());
    expect_slots_by_definition(p, batch, owned.table);
    expect_pull_groups_by_definition(p, owned.table);
}

// All ranks of one problem: together they hold every route once.
void check_every_rank(Problem p, Routing routing, const std::vector<int32_t>& tokens,
                      uint64_t seed) {
    Rng rng(seed);
    p.max_tokens = *std::max_element(tokens.begin(), tokens.end());
    const Batch batch = make_batch(p, routing, tokens, rng);
    int64_t held = 0, routes = 0;
    for (const auto& home : batch.ids) {
        routes += std::count_if(home.begin(), home.end(), [](int32_t id) { return id >= 0; });
    }
    for (p.rank = 0; p.rank < p.num_ranks; ++p.rank) {
        p.num_tokens = tokens[p.rank];
        SCOPED_TRACE(describe(p, routing, seed));
        const OwnedTable owned(p, batch);
        expect_right(p, batch, owned);
        for (int32_t e = 0; e < num_local_experts(p); ++e) held += segment_rows(p, owned.table, e);
        if (testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(held, routes);
}

Problem basic(int32_t ranks, int32_t experts, int32_t top_k) {
    Problem p{};
    p.num_ranks = ranks;
    p.hidden = 256;
    p.intermediate = 128;
    p.num_experts = experts;
    p.top_k = top_k;
    p.minibatch_rows = 128;
    p.macrobatch_rows = 384;
    p.context_rows = 256;
    return p;
}

TEST(RouteTable, FollowsTheDefinitionForEveryNumberOfRanks) {
    for (int32_t ranks = 1; ranks <= kMaxRanks; ++ranks) {
        for_each_routing(ranks, 300, ranks, expect_right);
        if (HasFailure()) return;
    }
}

TEST(RouteTable, AllRanksTogetherHoldEveryRouteOnce) {
    Rng rng(7);
    for (const int32_t ranks : {1, 2, 3, 5, 6, 7, 8, 12, 72}) {
        for (const int32_t experts : {1, 5, 8, 72, 100, 1024}) {
            for (const Routing routing : {Routing::Balanced, Routing::Zipf, Routing::Duplicates}) {
                const auto tokens = split_tokens(200, ranks, rng() % 2 == 0, rng);
                check_every_rank(basic(ranks, experts, 3), routing, tokens, rng());
                if (HasFailure()) return;
            }
        }
    }
}

TEST(RouteTable, UnequalTokens) {
    const std::vector<std::vector<int32_t>> cases = {{5, 6},       {1, 4096},     {0, 17},
                                                     {4095, 4095}, {1, 3, 5, 63}, {0, 0, 0}};
    for (size_t i = 0; i < cases.size(); ++i) {
        check_every_rank(basic(static_cast<int32_t>(cases[i].size()), 8, 2), Routing::Balanced,
                         cases[i], i);
    }
}

TEST(RouteTable, EveryNumberOfChoices) {
    for (const int32_t top_k : {1, 2, 8, 16, 128}) {
        check_every_rank(basic(3, 16, top_k), Routing::Balanced, {20, 0, 31}, top_k);
        check_every_rank(basic(2, top_k, top_k), Routing::Duplicates, {9, 30}, top_k);  // K = E
    }
}

TEST(RouteTable, NinetySixExpertsOnOneRank) {
    check_every_rank(basic(4, 384, 8), Routing::Zipf, {64, 64, 64, 64}, 1);
}

TEST(RouteTable, TheSameRoutingGivesTheSameTable) {
    Rng rng(3);
    Problem p = basic(4, 8, 2);
    p.rank = 1;
    p.max_tokens = 100;
    p.num_tokens = 100;
    const Batch batch = make_batch(p, Routing::Zipf, {100, 100, 100, 100}, rng);
    const OwnedTable a(p, batch), b(p, batch);
    for (int64_t i = 0; i < route_table_ints(p); ++i) {
        ASSERT_EQ(a.table.num_tokens[i], b.table.num_tokens[i]);  // the block's first array
    }
}

// The order of an expert's rows is that of the global batch, so that it does not depend on R.
TEST(RouteTable, RowsStandInTheOrderOfTheGlobalBatchForAnyNumberOfRanks) {
    Rng rng(11);
    Problem one = basic(1, 8, 2);
    one.max_tokens = one.num_tokens = 240;
    const Batch whole = make_batch(one, Routing::Zipf, {240}, rng);
    const OwnedTable all(one, whole);
    for (const int32_t ranks : {2, 3, 4, 8}) {
        Batch split{std::vector<int32_t>(ranks, 240 / ranks), {}};
        const int32_t per_rank = 240 / ranks * 2;
        for (int32_t h = 0; h < ranks; ++h) {
            const auto begin = whole.ids[0].begin() + h * per_rank;
            split.ids.emplace_back(begin, begin + per_rank);
        }
        Problem p = basic(ranks, 8, 2);
        p.max_tokens = p.num_tokens = 240 / ranks;
        for (p.rank = 0; p.rank < ranks; ++p.rank) {
            const OwnedTable own(p, split);
            for (int32_t e = 0; e < num_local_experts(p); ++e) {
                const int32_t global = first_expert(p, p.rank) + e;
                ASSERT_EQ(segment_rows(p, own.table, e), segment_rows(one, all.table, global));
                for (int32_t i = 0; i < segment_rows(p, own.table, e); ++i) {
                    const int32_t slot = own.table.segment_begin[e] + i;
                    EXPECT_EQ(own.table.slot_home[slot] * per_rank + own.table.slot_route[slot],
                              all.table.slot_route[all.table.segment_begin[global] + i]);
                }
            }
        }
    }
}

TEST(RouteTable, ExpertRankIsTheInverseOfFirstExpert) {
    Problem p{};
    for (p.num_ranks = 1; p.num_ranks <= kMaxRanks; ++p.num_ranks) {
        for (const int32_t experts : {1, 2, 5, 7, 8, 60, 72, 73, 128, 384, 1024}) {
            p.num_experts = experts;
            const std::vector<int32_t> owner = owners(experts, p.num_ranks);
            for (int32_t e = 0; e < experts; ++e) ASSERT_EQ(expert_rank(p, e), owner[e]);
            for (p.rank = 0; p.rank < p.num_ranks; ++p.rank) {
                const auto begin = std::lower_bound(owner.begin(), owner.end(), p.rank);
                const auto end = std::upper_bound(owner.begin(), owner.end(), p.rank);
                ASSERT_EQ(first_expert(p, p.rank), begin - owner.begin());
                ASSERT_EQ(num_local_experts(p), end - begin);
            }
        }
    }
}

TEST(RouteTable, TheFirstBadIdInGlobalOrderIsReported) {
    Rng rng(5);
    Problem p = basic(3, 8, 2);
    p.max_tokens = 50;
    const Batch good = make_batch(p, Routing::Balanced, {50, 0, 50}, rng);
    for (const int32_t id : {-2, 8, 1 << 30, INT32_MIN, INT32_MAX}) {
        for (p.rank = 0; p.rank < 3; ++p.rank) {
            Batch batch = good;
            batch.ids[2][2 * 17 + 1] = id;
            batch.ids[2][2 * 30] = -7;
            const OwnedTable owned(p, batch);
            EXPECT_TRUE(owned.bad.found);
            EXPECT_EQ(owned.bad.home, 2);
            EXPECT_EQ(owned.bad.token, 17);
            EXPECT_EQ(owned.bad.choice, 1);
            EXPECT_EQ(owned.bad.id, id);
            EXPECT_TRUE(owned.guards_intact());
        }
    }
}

}  // namespace
}  // namespace mok::plan
