// Sanitizers: asan tsan
#include <gtest/gtest.h>

#include "cli/common/random_case.h"

// The layer against the FP64 oracle.
namespace mok::cli {
namespace {

CaseOptions small_case() {
    CaseOptions o;
    o.shape.hidden = 256;
    o.shape.intermediate = 128;
    o.shape.num_experts = 8;
    o.shape.top_k = 2;
    o.num_tokens = 300;
    return o;
}

void expect_right(const CaseOptions& options, const GlobalOptions& global) {
    const RandomCase c = random_case(options);
    const GlobalResult r = run_global(c.shape, c.inputs(), global);
    for (const Mismatch& m : compare_with_oracle(c, r)) ADD_FAILURE() << m.sentence();
}

TEST(LayerOracle, Plain) {
    expect_right(small_case(), {});
}

TEST(LayerOracle, EverythingAtOnce) {
    CaseOptions o = small_case();
    o.biases = true;
    o.masked = 0.2;
    o.duplicates = 0.1;
    o.shape.shared_intermediate = 200;
    o.shared_weights = true;
    o.shape.activation = {2.0f, 1.702f, 1.0f};
    GlobalOptions g;
    g.num_ranks = 3;
    expect_right(o, g);
}

}  // namespace
}  // namespace mok::cli
