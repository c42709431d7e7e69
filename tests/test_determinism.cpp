// docs/determinism.md: the same bits for every number of ranks, tuning, order of tasks and timing.
#include "layer_fixture.h"

namespace mok_test {
namespace {

constexpr int64_t kTokens = 640;

// The case, its result on one rank with the default tuning, and that result without the shared
// expert's weight gradients.
struct Reference {
    RandomCase c = cli::random_case(rich_case(kTokens));
    GlobalResult whole = run(c, {});
    GlobalResult routed = [this] {
        GlobalResult r = whole;
        drop_shared_gradients(r);
        return r;
    }();

    void expect_same_bits(const GlobalOptions& g, const std::string& what) const {
        GlobalResult found = run(c, g);
        if (splits_at_blocks_of_128(kTokens, g)) return expect_same(c.shape, found, whole, what);
        drop_shared_gradients(found);
        expect_same(c.shape, found, routed, what);
    }
};
const Reference& reference() {
    static const Reference instance;
    return instance;
}

TEST(Determinism, TheReferenceIsRight) {
    expect_within_bounds(reference().c, reference().whole);
}

// Splits of 640 tokens at multiples of 128, where the shared expert's gradients keep their bits.
std::vector<int64_t> split_at_blocks(int ranks) {
    switch (ranks) {
        case 1:
            return {640};
        case 2:
            return {128, 512};
        case 3:
            return {256, 0, 384};
        case 4:
            return {256, 0, 128, 256};
        default:
            return {128, 0, 128, 0, 128, 128, 0, 128};
    }
}

class Sweep : public testing::TestWithParam<int> {};

// Every macrobatch, context and keep_x; the other settings take their turns over all of these.
TEST_P(Sweep, NoSettingChangesABit) {
    const int ranks = GetParam();
    int turn = ranks;
    for (const int64_t macrobatch : {128, 512, 131072}) {
        for (const int64_t context : {0, 256, -1}) {
            for (const bool keep_x : {false, true}) {
                GlobalOptions g = on_ranks(ranks);
                if (turn % 3 != 0) g.tokens_per_rank = split_at_blocks(ranks);
                const int64_t minibatches[] = {0, 128, std::min<int64_t>(macrobatch, 384)};
                g.tuning.minibatch_rows = minibatches[turn % 3];
                g.tuning.macrobatch_rows = macrobatch;
                g.tuning.context_rows = context;
                g.tuning.keep_x = keep_x;
                g.tuning.max_workers = 1 + turn % 4;
                g.split_backward = turn % 2 == 0;
                g.recompute = turn / 2 % 2 == 0;
                g.poison = turn / 3 % 2 == 0;
                reference().expect_same_bits(g, "macrobatch " + std::to_string(macrobatch) +
                                                    ", context " + std::to_string(context) +
                                                    ", turn " + std::to_string(turn) + ": ");
                ++turn;
            }
        }
    }
}
INSTANTIATE_TEST_SUITE_P(Ranks, Sweep, testing::Values(1, 2, 3, 4, 8));

// The backward in one call: without a shared expert run_global makes it so.
TEST(Determinism, BackwardInOneCallOrTwo) {
    CaseOptions o = rich_case(300);
    o.shape.shared_intermediate = 0;
    o.shared_weights = false;
    const RandomCase c = cli::random_case(o);
    const GlobalResult want = expect_right(c, on_ranks(3));
    for (const int64_t context : {0, 256, -1}) {
        for (const bool keep_x : {false, true}) {
            for (const bool split : {false, true}) {
                GlobalOptions g = on_ranks(2);
                g.tuning.macrobatch_rows = 256;
                g.tuning.context_rows = context;
                g.tuning.keep_x = keep_x;
                g.split_backward = split;
                expect_same(c.shape, run(c, g), want);
            }
        }
    }
}

// Tasks in any order that their signals allow.
class RandomOrder : public testing::TestWithParam<int> {};
TEST_P(RandomOrder, KeepsTheBits) {
    const int seed = GetParam();
    const int64_t macrobatches[] = {128, 384, 131072}, contexts[] = {0, 256, -1};
    GlobalOptions g = on_ranks(1 + seed % 3);
    if (g.num_ranks > 1) g.tokens_per_rank = split_at_blocks(g.num_ranks);
    g.diagnostics.resize(g.num_ranks);
    for (Diagnostics& d : g.diagnostics) d.order_seed = seed + 1;
    g.tuning.macrobatch_rows = macrobatches[seed / 2 % 3];
    g.tuning.minibatch_rows = seed % 2 ? 128 : 0;
    g.tuning.context_rows = contexts[seed % 3];
    g.tuning.keep_x = seed % 4 < 2;
    g.split_backward = seed % 5 < 2;
    g.recompute = seed % 7 == 0;
    reference().expect_same_bits(g, "seed " + std::to_string(seed) + ": ");
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomOrder, testing::Range(0, 20));

}  // namespace
}  // namespace mok_test
