// Case 22: the same bits when ranks and workers stall at random.
// Sanitizers: tsan
#include "layer_fixture.h"

namespace mok_test {
namespace {

// A signal that came too early, or a wait left out, showed only when one rank was slow.
TEST(Case22, HundredRunsWithRandomStalls) {
    // Alternating: with a shared expert (always split), and without (one call or two).
    const RandomCase rich = cli::random_case(rich_case(256));
    CaseOptions o = rich_case(256);
    o.shape.shared_intermediate = 0;
    o.shared_weights = false;
    const RandomCase routed = cli::random_case(o);
    const GlobalResult want_rich = run(rich, {}), want_routed = run(routed, {});
    for (int repeat = 0; repeat < 100; ++repeat) {
        const RandomCase& c = repeat / 2 % 2 ? rich : routed;
        const GlobalResult& want = repeat / 2 % 2 ? want_rich : want_routed;
        GlobalOptions g = on_ranks(2, {128, 128});
        g.tuning.max_workers = 2;
        g.tuning.macrobatch_rows = repeat % 2 ? 256 : 512;
        g.tuning.minibatch_rows = 128;
        g.tuning.context_rows = repeat % 3 == 0 ? -1 : 128;
        g.tuning.keep_x = repeat % 5 < 2;
        g.split_backward = repeat % 7 < 3;
        g.recompute = repeat % 11 == 0;
        g.diagnostics.resize(2);
        g.diagnostics[0].stall_seed = 2 * repeat + 1;
        g.diagnostics[1].stall_seed = repeat % 5 == 0 ? 0 : 2 * repeat + 2;
        expect_same(c.shape, run(c, g), want, "repeat " + std::to_string(repeat) + ": ");
    }
}

}  // namespace
}  // namespace mok_test
