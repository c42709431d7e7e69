#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "plan/validate.h"

namespace mok::plan {
namespace {

struct Case {
    LayerShape shape;
    Tuning tuning;
    int num_ranks = 8;
    int64_t max_tokens = 4096;
};

Case good() {
    Case c;
    c.shape.hidden = 256;
    c.shape.intermediate = 128;
    c.shape.num_experts = 8;
    c.shape.top_k = 2;
    return c;
}
std::vector<std::string> problems(const Case& c) {
    return problems_of(c.shape, c.tuning, c.num_ranks, c.max_tokens);
}

// One broken rule gives one sentence, which names the field and what was found.
struct Broken {
    const char* name;
    std::function<void(Case&)> change;
    const char* field;
    const char* found;
};

constexpr int64_t k2To31 = int64_t{1} << 31;

TEST(Validate, OneSentenceForEachBrokenRule) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float inf = std::numeric_limits<float>::infinity();
    const std::vector<Broken> cases = {
        {"H 0", [](Case& c) { c.shape.hidden = 0; }, "hidden (H)", "found 0"},
        {"H < 0", [](Case& c) { c.shape.hidden = -8; }, "hidden (H)", "found -8"},
        {"H odd", [](Case& c) { c.shape.hidden = 260; }, "hidden (H)", "found 260"},
        {"H 2^30 + 8", [](Case& c) { c.shape.hidden = (1 << 30) + 8; }, "hidden (H)",
         "found 1073741832"},
        {"I 0", [](Case& c) { c.shape.intermediate = 0; }, "intermediate (I)", "found 0"},
        {"I odd", [](Case& c) { c.shape.intermediate = 4; }, "intermediate (I)", "found 4"},
        {"S < 0", [](Case& c) { c.shape.shared_intermediate = -16; }, "shared_intermediate (S)",
         "found -16"},
        {"S odd", [](Case& c) { c.shape.shared_intermediate = 12; }, "shared_intermediate (S)",
         "found 12"},
        {"E 0", [](Case& c) { c.shape.num_experts = 0; }, "num_experts (E)", "found 0"},
        {"E 2^31", [](Case& c) { c.shape.num_experts = k2To31; }, "num_experts (E)",
         "found 2147483648"},
        {"K 0", [](Case& c) { c.shape.top_k = 0; }, "top_k (K)", "found 0"},
        {"K 129", [](Case& c) { c.shape.top_k = 129; }, "top_k (K)", "found 129"},
        {"limit 0", [](Case& c) { c.shape.activation.limit = 0; }, "activation.limit", "found 0"},
        {"limit NaN", [=](Case& c) { c.shape.activation.limit = nan; }, "activation.limit",
         "found nan"},
        {"alpha inf", [=](Case& c) { c.shape.activation.alpha = inf; }, "activation.alpha",
         "found inf"},
        {"beta NaN", [=](Case& c) { c.shape.activation.beta = nan; }, "activation.beta",
         "found nan"},
        {"b < 0", [](Case& c) { c.tuning.minibatch_rows = -128; }, "minibatch_rows (b)",
         "found -128"},
        {"b 64", [](Case& c) { c.tuning.minibatch_rows = 64; }, "minibatch_rows (b)", "found 64"},
        {"b > B", [](Case& c) { c.tuning.minibatch_rows = 131200; }, "minibatch_rows (b)",
         "found 131200"},
        {"B 0", [](Case& c) { c.tuning.macrobatch_rows = 0; }, "macrobatch_rows (B)", "found 0"},
        {"B 100", [](Case& c) { c.tuning.macrobatch_rows = 100; }, "macrobatch_rows (B)",
         "found 100"},
        {"B 2^30 + 128", [](Case& c) { c.tuning.macrobatch_rows = (1 << 30) + 128; },
         "macrobatch_rows (B)", "found 1073741952"},
        {"C -2", [](Case& c) { c.tuning.context_rows = -2; }, "context_rows (C)", "found -2"},
        {"C -128", [](Case& c) { c.tuning.context_rows = -128; }, "context_rows (C)", "found -128"},
        {"C 127", [](Case& c) { c.tuning.context_rows = 127; }, "context_rows (C)", "found 127"},
        {"C 2^31", [](Case& c) { c.tuning.context_rows = k2To31; }, "context_rows (C)",
         "found 2147483648"},
        {"workers -1", [](Case& c) { c.tuning.max_workers = -1; }, "max_workers", "found -1"},
        {"R 0", [](Case& c) { c.num_ranks = 0; }, "ranks (R)", "found 0"},
        {"R 73", [](Case& c) { c.num_ranks = 73; }, "ranks (R)", "found 73"},
        {"Tm -1", [](Case& c) { c.max_tokens = -1; }, "max_tokens", "found -1"},
        {"Tm 2^31", [](Case& c) { c.max_tokens = k2To31; }, "max_tokens", "found 2147483648"},
        // 8 * 2^27 * 2 = 2^31 routes, 127 rows of padding, 131072 ring rows.
        {"routes", [](Case& c) { c.max_tokens = 1 << 27; }, "max_tokens", "found 2147614847"},
        // 2^25 experts: 2^25 * 127 rows of padding and the routes pass 2^31.
        {"padding", [](Case& c) { c.shape.num_experts = int64_t{1} << 28; }, "max_tokens",
         "found 4261609472"},
    };
    for (const Broken& broken : cases) {
        SCOPED_TRACE(broken.name);
        Case c = good();
        broken.change(c);
        const std::vector<std::string> found = problems(c);
        ASSERT_GE(found.size(), 1u);
        EXPECT_EQ(found.size(), 1u) << found.back();
        EXPECT_NE(found[0].find(broken.field), std::string::npos) << found[0];
        EXPECT_NE(found[0].find(broken.found), std::string::npos) << found[0];
        EXPECT_NE(found[0].find("must be"), std::string::npos) << found[0];
    }
}

TEST(Validate, EveryBrokenRuleIsToldAtOnce) {
    Case c = good();
    c.shape.hidden = 7;
    c.shape.top_k = 0;
    c.tuning.context_rows = 1;
    c.num_ranks = 100;
    EXPECT_EQ(problems(c).size(), 4u);
}

TEST(Validate, WhatIsAllowed) {
    const std::vector<std::function<void(Case&)>> changes = {
        [](Case&) {}, [](Case& c) { c.shape.hidden = c.shape.intermediate = 8; },
        [](Case& c) { c.shape.hidden = 2880, c.shape.intermediate = 96; },
        [](Case& c) { c.shape.shared_intermediate = 8; },
        [](Case& c) { c.shape.num_experts = 1; },  // fewer experts than ranks
        [](Case& c) { c.shape.top_k = 128; },      // more choices than experts: duplicates count
        [](Case& c) { c.shape.num_experts = 1024; },
        [](Case& c) {
            c.shape.activation = {7.0f, 1.702f, 1.0f};
        },
        [](Case& c) { c.num_ranks = 1; }, [](Case& c) { c.num_ranks = 72; },
        [](Case& c) { c.max_tokens = 0; }, [](Case& c) { c.tuning.minibatch_rows = 128; },
        [](Case& c) { c.tuning.minibatch_rows = c.tuning.macrobatch_rows; },
        // The default minibatch of kimi-k2.7 on 148 multiprocessors does not divide the ring.
        [](Case& c) { c.tuning.minibatch_rows = 2432; },
        [](Case& c) { c.tuning.macrobatch_rows = 128; }, [](Case& c) { c.tuning.context_rows = 0; },
        [](Case& c) { c.tuning.context_rows = 1280000; },
        [](Case& c) { c.max_tokens = (1 << 27) - 8193 - 8; },  // 2^31 - 2^17 - 256 + 127 + 2^17
    };
    for (size_t i = 0; i < changes.size(); ++i) {
        SCOPED_TRACE(i);
        Case c = good();
        changes[i](c);
        for (const std::string& sentence : problems(c)) ADD_FAILURE() << sentence;
    }
}

// Shapes whose task numbers would pass int32, though every field is in range.
TEST(Validate, TaskNumbersStayInsideInt32) {
    Case c = good();
    c.shape.hidden = c.shape.intermediate = int64_t{1} << 22;
    // One expert: 3 * 2^15 * 2^14 = 3 * 2^29 tiles of weight gradients fit, of 8 experts do not.
    c.num_ranks = 8;
    c.max_tokens = 16;
    EXPECT_TRUE(problems(c).empty());
    c.num_ranks = 1;
    std::vector<std::string> found = problems(c);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_NE(found[0].find("found 1610612736 * 8"), std::string::npos) << found[0];

    // 2^20 tokens of 2 choices: 2^14 tiles and one, each with 2^15 columns of 256.
    c = good();
    c.num_ranks = 1;
    c.shape.num_experts = 1;
    c.shape.hidden = int64_t{1} << 26;
    c.max_tokens = 1 << 20;
    found = problems(c);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_NE(found[0].find("output tiles"), std::string::npos) << found[0];
}

}  // namespace
}  // namespace mok::plan
