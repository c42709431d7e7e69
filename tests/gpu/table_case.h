#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "cli/common/random.h"
#include "plan/problem.h"

// Problems and ids that the table builder's test draws.
namespace mok::table_test {

using cli::Random;
using plan::Problem;

enum class Routing { Uniform, Skewed, OneExpert, Duplicates, Local, Empty };
constexpr int kNumRoutings = 6;

struct Case {
    Problem problem;
    std::vector<int32_t> num_tokens;
    std::vector<std::vector<int32_t>> ids;
    std::string name;
};

inline int32_t draw_id(Random& random, const Problem& p, Routing routing, int32_t token_expert) {
    const double at = random.uniform();
    switch (routing) {
        case Routing::Uniform:
            return static_cast<int32_t>(random.below(p.num_experts));
        case Routing::Skewed:
            if (random.uniform() < 0.2) return -1;
            return static_cast<int32_t>(at * at * at * p.num_experts);
        case Routing::OneExpert:
            return plan::first_expert(p, p.rank) % p.num_experts;
        case Routing::Duplicates:
            return random.uniform() < 0.7 ? token_expert
                                          : static_cast<int32_t>(random.below(p.num_experts));
        case Routing::Local:
            return static_cast<int32_t>(
                (plan::first_expert(p, p.rank) + random.below(std::max(1, num_local_experts(p)))) %
                p.num_experts);
        case Routing::Empty:
            return -1;
    }
    return -1;
}

inline void fill_ids(Random& random, Case& c, Routing routing) {
    const Problem& p = c.problem;
    c.ids.resize(p.num_ranks);
    for (int32_t h = 0; h < p.num_ranks; ++h) {
        c.ids[h].resize(int64_t{c.num_tokens[h]} * p.top_k);
        int32_t token_expert = 0;
        for (size_t route = 0; route < c.ids[h].size(); ++route) {
            if (route % p.top_k == 0) {
                token_expert = static_cast<int32_t>(random.below(p.num_experts));
            }
            c.ids[h][route] = draw_id(random, p, routing, token_expert);
        }
    }
}

inline std::string describe(const Problem& p) {
    const auto text = [](const char* name, int64_t value) {
        return std::string(" ") + name + "=" + std::to_string(value);
    };
    return text("R", p.num_ranks) + text("rank", p.rank) + text("T", p.max_tokens) +
           text("K", p.top_k) + text("E", p.num_experts) + text("E_l", num_local_experts(p)) +
           text("B", p.macrobatch_rows) + text("C", p.context_rows);
}

inline Case random_case(Random& random) {
    constexpr int32_t kRanks[] = {1, 1, 2, 3, 4, 7, 8, 16, 33, 64, 72};
    constexpr int32_t kTopK[] = {1, 2, 3, 6, 8, 10, 31, 33, 128};
    constexpr int32_t kExperts[] = {1, 2, 5, 12, 48, 100, 384, 1024, 3000};
    constexpr int32_t kTokens[] = {0, 1, 5, 64, 127, 500, 2048};
    const auto one_of = [&random](const auto& list) {
        return list[random.below(static_cast<int64_t>(std::size(list)))];
    };
    Case c;
    Problem& p = c.problem;
    p = {};
    p.num_ranks = one_of(kRanks);
    p.rank = static_cast<int32_t>(random.below(p.num_ranks));
    p.hidden = p.intermediate = 128;
    p.top_k = one_of(kTopK);
    p.num_experts = one_of(kExperts);
    p.max_tokens = one_of(kTokens);
    // At most about 200000 routes.
    p.max_tokens = std::min(p.max_tokens, 200000 / (p.num_ranks * p.top_k) + 1);
    p.minibatch_rows = plan::kTileRows;
    p.macrobatch_rows = static_cast<int32_t>(plan::kTileRows << random.below(8));
    p.context_rows = static_cast<int32_t>(plan::kTileRows * random.below(40));
    c.num_tokens.resize(p.num_ranks);
    const double emptiness = random.uniform() < 0.3 ? 0.7 : 0.1;
    for (int32_t& count : c.num_tokens) {
        const double kind = random.uniform();
        count = kind < emptiness
                    ? 0
                    : (kind < 0.8 ? p.max_tokens
                                  : static_cast<int32_t>(random.below(p.max_tokens + 1)));
    }
    p.num_tokens = c.num_tokens[p.rank];
    const int64_t routing = random.below(kNumRoutings);
    fill_ids(random, c, static_cast<Routing>(routing));
    c.name = describe(p) + " routing=" + std::to_string(routing);
    return c;
}

// Every home rank with as many tokens, spread evenly.
struct TimedShape {
    const char* name;
    int32_t num_ranks, max_tokens, top_k, num_experts;
};

inline Case timed_case(const TimedShape& shape) {
    Random random(7);
    Case c;
    Problem& p = c.problem;
    p = {};
    p.num_ranks = shape.num_ranks;
    p.rank = shape.num_ranks / 2;
    p.hidden = p.intermediate = 2048;
    p.top_k = shape.top_k;
    p.num_experts = shape.num_experts;
    p.max_tokens = p.num_tokens = shape.max_tokens;
    p.minibatch_rows = 2176;
    p.macrobatch_rows = 32768;
    p.context_rows = 32768;
    c.num_tokens.assign(p.num_ranks, p.max_tokens);
    fill_ids(random, c, Routing::Uniform);
    c.name = std::string(" ") + shape.name;
    return c;
}

}  // namespace mok::table_test
