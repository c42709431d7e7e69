// Ranks in processes bring a global result together. Here every rank is a thread with memory of its
// own, in a group that exchanges bytes as processes do; the right result is that of one memory.
// Sanitizers: asan tsan
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/common/gather.h"
#include "layer_fixture.h"

namespace mok::cli {
namespace {

using testing::HasSubstr;

std::byte byte_of(int rank, std::size_t at) {
    return static_cast<std::byte>(17 * rank + at + at / 251);
}

// Parts of these sizes, of which a rank fills its own alone.
void expect_gathered(const std::vector<std::size_t>& sizes) {
    const int num_ranks = static_cast<int>(sizes.size());
    run_ranks(Group::in_process(num_ranks), [&](const Group& group) {
        std::vector<std::vector<std::byte>> parts(num_ranks);
        std::vector<std::span<std::byte>> views;
        for (int r = 0; r < num_ranks; ++r) {
            parts[r].assign(sizes[r], std::byte{0xee});
            for (std::size_t i = 0; i < sizes[r] && r == group.rank(); ++i) {
                parts[r][i] = byte_of(r, i);
            }
            views.emplace_back(parts[r]);
        }
        gather_parts(group, views, "gathering of a test");
        for (int r = 0; r < num_ranks; ++r) {
            int64_t wrong = 0;
            for (std::size_t i = 0; i < sizes[r]; ++i) wrong += parts[r][i] != byte_of(r, i);
            EXPECT_EQ(wrong, 0) << "rank " << r << "'s part on rank " << group.rank();
        }
    });
}

TEST(Gather, PartsOfAnySize) {
    const std::size_t most = comm::kMaxExchangeBytes;
    expect_gathered({5});
    expect_gathered({0, 0});
    expect_gathered({0, 3, 0});
    expect_gathered({most, most - 1, most + 1, 0, 1});
    expect_gathered({3 * most + 7, 12});
}

TEST(Gather, ARankOfAnotherSizeIsAnError) {
    for (const std::size_t other : {3u, 5u}) {
        try {
            run_ranks(Group::in_process(2), [&](const Group& group) {
                std::vector<std::byte> own(4), others(group.rank() == 0 ? other : 4);
                std::vector<std::span<std::byte>> parts{own, others};
                if (group.rank() == 1) std::swap(parts[0], parts[1]);
                parts[group.rank()] = own;
                gather_parts(group, parts, "gathering of a test");
            });
            ADD_FAILURE() << "gathered";
        } catch (const Error& e) {
            EXPECT_THAT(e.what(), HasSubstr("a rank sent another size"));
        }
    }
}

TEST(Gather, Values) {
    run_ranks(Group::in_process(3), [](const Group& group) {
        EXPECT_EQ(gather_values(group, 0.5 * group.rank(), "values"),
                  (std::vector<double>{0.0, 0.5, 1.0}));
    });
}

// ---- A whole layer ----------------------------------------------------------------------------

struct Split {
    const char* what;
    int num_ranks;
    std::vector<int64_t> tokens;
};

// Each rank calls run_global by itself, as a process does, and has the result of all.
void expect_same_result(const RandomCase& c, const GlobalOptions& options) {
    const GlobalResult want = run_global(c.shape, c.inputs(), options);
    run_ranks(Group::in_process(options.num_ranks), [&](const Group& group) {
        GlobalOptions own = options;
        own.processes = group;
        const GlobalResult found = run_global(c.shape, c.inputs(), own);
        for (const Mismatch& m : compare_results(c.shape, found, want)) {
            ADD_FAILURE() << "rank " << group.rank() << ": " << m.sentence();
        }
        EXPECT_EQ(found.tokens_per_expert, want.tokens_per_expert);
        EXPECT_EQ(found.workspace_bytes, want.workspace_bytes);
        EXPECT_EQ(found.context_bytes, want.context_bytes);
        ASSERT_EQ(found.links.size(), want.links.size());
        for (size_t r = 0; r < want.links.size(); ++r) {
            EXPECT_EQ(found.links[r].pulled, want.links[r].pulled);
            EXPECT_EQ(found.links[r].pushed, want.links[r].pushed);
        }
    });
}

TEST(GatherVectors, OfAnySizes) {
    run_ranks(Group::in_process(3), [](const Group& group) {
        const std::vector<int32_t> mine(group.rank() == 1 ? 0 : 400000 * group.rank() + 1,
                                        group.rank());
        const auto all = gather_vectors(group, mine, "a test");
        ASSERT_EQ(all.size(), 3u);
        EXPECT_EQ(all[0], std::vector<int32_t>(1, 0));
        EXPECT_TRUE(all[1].empty());
        EXPECT_EQ(all[2], std::vector<int32_t>(800001, 2));
    });
}

TEST(GatheredLayer, HasTheResultOfOneProcessOnEveryRank) {
    const RandomCase c = random_case(mok_test::rich_case(300));
    for (const Split& split :
         {Split{"even", 2, {}}, Split{"a rank without tokens", 3, {128, 0, 172}},
          Split{"ranks without experts", 10, {}}}) {
        SCOPED_TRACE(split.what);
        GlobalOptions o;
        o.num_ranks = split.num_ranks;
        o.tokens_per_rank = split.tokens;
        o.tuning.max_workers = 1;
        expect_same_result(c, o);
        o.split_backward = o.recompute = o.poison = true;
        expect_same_result(c, o);
    }
}

TEST(GatheredLayer, AForwardAlone) {
    mok_test::CaseOptions forward = mok_test::case_of(140);
    forward.backward = false;
    GlobalOptions o;
    o.num_ranks = 3;
    expect_same_result(random_case(forward), o);
}

// What has fewer ranks than the group is run by every process for itself.
TEST(GatheredLayer, OneRankNeedsNoOther) {
    const RandomCase c = random_case(mok_test::case_of(130));
    GlobalOptions o;
    const GlobalResult want = run_global(c.shape, c.inputs(), o);
    o.processes = Group::in_process(2)[1];
    EXPECT_TRUE(compare_results(c.shape, run_global(c.shape, c.inputs(), o), want).empty());
}

}  // namespace
}  // namespace mok::cli
