#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "plan/route_table.h"
#include "plan/rows.h"

// Random problems, routings and route tables for the tests of `plan`.
namespace mok::plan::fixture {

using Rng = std::mt19937_64;

inline int32_t pick(Rng& rng, int32_t low, int32_t high) {  // both inclusive
    return low + static_cast<int32_t>(rng() % static_cast<uint64_t>(high - low + 1));
}
template <class T>
T one_of(Rng& rng, std::initializer_list<T> values) {
    return values.begin()[rng() % values.size()];
}

enum class Routing { Balanced, Zipf, Empty, OneExpert, OneRank, Masked, Duplicates };
inline constexpr Routing kRoutings[] = {Routing::Balanced,  Routing::Zipf,    Routing::Empty,
                                        Routing::OneExpert, Routing::OneRank, Routing::Masked,
                                        Routing::Duplicates};

// ids[h] is home rank h's [num_tokens[h], K].
struct Batch {
    std::vector<int32_t> num_tokens;
    std::vector<std::vector<int32_t>> ids;

    std::vector<const int32_t*> pointers() const {
        std::vector<const int32_t*> result;
        for (const auto& home : ids) result.push_back(home.data());
        return result;
    }
};

// An expert of a routing. Zipf: the probability of expert e falls as (e + 1)^-1.2.
class ExpertSource {
  public:
    ExpertSource(const Problem& p, Routing routing) : problem_(p), routing_(routing) {
        double sum = 0;
        for (int32_t e = 0; e < p.num_experts; ++e) {
            sum += routing == Routing::Zipf ? std::pow(e + 1.0, -1.2) : 1.0;
            cumulated_.push_back(sum);
        }
    }
    int32_t draw(Rng& rng) const {
        const int32_t first = first_expert(problem_, problem_.rank);
        const int32_t local = num_local_experts(problem_);
        switch (routing_) {
            case Routing::Empty:
                return -1;
            case Routing::OneExpert:
                return local > 0 ? first + local - 1 : 0;
            case Routing::OneRank:
                return local > 0 ? pick(rng, first, first + local - 1) : 0;
            case Routing::Masked:
                if (rng() % 3 == 0) return -1;
                break;
            default:
                break;
        }
        const double at = static_cast<double>(rng() >> 11) * 0x1p-53 * cumulated_.back();
        const auto found = std::upper_bound(cumulated_.begin(), cumulated_.end(), at);
        return std::min<int32_t>(static_cast<int32_t>(found - cumulated_.begin()),
                                 problem_.num_experts - 1);
    }

  private:
    Problem problem_;
    Routing routing_;
    std::vector<double> cumulated_;
};

// Choices of a token differ where the routing allows it; with Duplicates about half repeat.
inline Batch make_batch(const Problem& p, Routing routing, std::vector<int32_t> num_tokens,
                        Rng& rng) {
    const ExpertSource source(p, routing);
    Batch batch{std::move(num_tokens), {}};
    for (const int32_t tokens : batch.num_tokens) {
        std::vector<int32_t> ids;
        for (int32_t token = 0; token < tokens; ++token) {
            const auto begin = static_cast<std::ptrdiff_t>(ids.size());
            for (int32_t choice = 0; choice < p.top_k; ++choice) {
                int32_t id = source.draw(rng);
                for (int32_t attempt = 0; attempt < 4; ++attempt) {
                    if (id < 0 || std::find(ids.begin() + begin, ids.end(), id) == ids.end()) break;
                    id = source.draw(rng);
                }
                if (routing == Routing::Duplicates && choice > 0 && rng() % 2 == 0) id = ids.back();
                ids.push_back(id);
            }
        }
        batch.ids.push_back(std::move(ids));
    }
    return batch;
}

// Splits `total` tokens over the ranks: evenly, or at random with some ranks empty.
inline std::vector<int32_t> split_tokens(int32_t total, int32_t ranks, bool even, Rng& rng) {
    std::vector<int32_t> tokens(ranks, 0);
    if (even) {
        for (int32_t r = 0; r < ranks; ++r) tokens[r] = total / ranks + (r < total % ranks ? 1 : 0);
        return tokens;
    }
    for (int32_t i = 0; i < total; ++i) ++tokens[rng() % ((ranks + 1) / 2) * 2 % ranks];
    return tokens;
}

// A route table with the memory that it lies in, guarded on both sides.
class OwnedTable {
  public:
    OwnedTable(const Problem& p, const Batch& batch)
        : ints_(route_table_ints(p)), block_(ints_ + 2 * kGuard, kPoison) {
        table = route_table_at(p, block_.data() + kGuard);
        bad = build_route_table(p, batch.pointers().data(), batch.num_tokens.data(), table);
    }
    OwnedTable(const OwnedTable&) = delete;
    OwnedTable& operator=(const OwnedTable&) = delete;

    bool guards_intact() const {
        const auto poisoned = [](int32_t value) { return value == kPoison; };
        return std::all_of(block_.begin(), block_.begin() + kGuard, poisoned) &&
               std::all_of(block_.end() - kGuard, block_.end(), poisoned);
    }

    RouteTable table;
    BadId bad;

  private:
    static constexpr int32_t kPoison = 0x5a5a5a5a;
    static constexpr std::ptrdiff_t kGuard = 64;
    int64_t ints_;
    std::vector<int32_t> block_;
};

// A problem of a few tiles with everything about it random but the number of ranks.
inline Problem random_problem(int32_t ranks, int32_t total_tokens, Rng& rng) {
    Problem p{};
    p.num_ranks = ranks;
    p.num_experts = one_of<int32_t>(rng, {1, ranks, 2 * ranks, 3 * ranks + 1, 5, 8, 2 * ranks - 1});
    p.rank = pick(rng, 0, std::min(ranks, p.num_experts) - 1);
    if (rng() % 8 == 0) p.rank = pick(rng, 0, ranks - 1);  // at times one without experts
    p.hidden = one_of<int32_t>(rng, {256, 264, 8, 520});
    p.intermediate = one_of<int32_t>(rng, {128, 136, 8, 264});
    p.top_k = pick(rng, 1, 4);
    p.shared_intermediate = one_of<int32_t>(rng, {0, 0, 40, 136});
    p.max_tokens = total_tokens;
    p.macrobatch_rows = kTileRows * one_of<int32_t>(rng, {1, 2, 3, 4, 5, 8, 100});
    p.minibatch_rows = kTileRows * one_of<int32_t>(rng, {1, 1, 2, 3, 4});
    if (rng() % 4 == 0) p.minibatch_rows = p.macrobatch_rows;
    p.context_rows = kTileRows * one_of<int32_t>(rng, {0, 0, 1, 2, 4, 7, 1000});
    p.keep_x = rng() % 2 == 0;
    return p;
}

inline std::string describe(const Problem& p, Routing routing, uint64_t seed) {
    const std::pair<const char*, int64_t> values[] = {{"seed", static_cast<int64_t>(seed)},
                                                      {"routing", static_cast<int64_t>(routing)},
                                                      {"R", p.num_ranks},
                                                      {"rank", p.rank},
                                                      {"H", p.hidden},
                                                      {"I", p.intermediate},
                                                      {"E", p.num_experts},
                                                      {"K", p.top_k},
                                                      {"S", p.shared_intermediate},
                                                      {"T", p.num_tokens},
                                                      {"b", p.minibatch_rows},
                                                      {"B", p.macrobatch_rows},
                                                      {"C", p.context_rows},
                                                      {"keep_x", p.keep_x}};
    std::string text;
    for (const auto& [name, value] : values) {
        text += std::string(name) + "=" + std::to_string(value) + " ";
    }
    return text;
}

// Calls visit(problem, batch, owned table) for a random problem of `ranks` ranks and each routing.
template <class Visitor>
void for_each_routing(int32_t ranks, int32_t total_tokens, uint64_t seed, Visitor&& visit) {
    for (const Routing routing : kRoutings) {
        const uint64_t own_seed = seed * 1000 + static_cast<uint64_t>(routing);
        Rng rng(own_seed);
        Problem p = random_problem(ranks, total_tokens, rng);
        const Batch batch =
            make_batch(p, routing, split_tokens(total_tokens, ranks, rng() % 2 == 0, rng), rng);
        p.num_tokens = batch.num_tokens[p.rank];
        SCOPED_TRACE(describe(p, routing, own_seed));
        const OwnedTable owned(p, batch);
        ASSERT_FALSE(owned.bad.found);
        visit(p, batch, owned);
        if (testing::Test::HasFatalFailure()) return;
    }
}

// Calls visit as above for 1024 experts and 16 choices: most experts have few rows or none.
template <class Visitor>
void for_many_experts(Visitor&& visit) {
    for (const int32_t ranks : {1, 11, 72}) {
        Problem p{};
        p.num_ranks = ranks;
        p.rank = ranks / 2;
        p.hidden = 256;
        p.intermediate = 128;
        p.num_experts = 1024;
        p.top_k = 16;
        p.max_tokens = p.num_tokens = 10;
        p.minibatch_rows = 3 * kTileRows;
        p.macrobatch_rows = 8 * kTileRows;
        p.context_rows = 20 * kTileRows;
        SCOPED_TRACE(describe(p, Routing::Zipf, ranks));
        Rng rng(ranks);
        const Batch batch = make_batch(p, Routing::Zipf, std::vector<int32_t>(ranks, 10), rng);
        const OwnedTable owned(p, batch);
        visit(p, batch, owned);
        if (testing::Test::HasFatalFailure()) return;
    }
}

}  // namespace mok::plan::fixture
