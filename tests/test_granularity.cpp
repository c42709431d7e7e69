#include <gtest/gtest.h>

#include "plan/granularity.h"

namespace mok::plan {
namespace {

// kimi-k2.7: hidden 7168, expert width 2048. The forward's floor on 148 multiprocessors is the
// published point, 2368 rows.
TEST(Granularity, KimiForward) {
    EXPECT_EQ(forward_granularity(148, 7168, 2048).floor_rows, 2368);
    EXPECT_EQ(forward_granularity(148, 7168, 2048).default_rows, 2432);
    EXPECT_EQ(forward_granularity(132, 7168, 2048).floor_rows, 2112);
    EXPECT_EQ(forward_granularity(132, 7168, 2048).default_rows, 2176);
}

// b >= 2 * W * A / min(I, H): 2 * 148 * 32768 / 2048 = 4736, a multiple of 128 already.
TEST(Granularity, KimiBackward) {
    EXPECT_EQ(backward_granularity(148, 7168, 2048).floor_rows, 4736);
    EXPECT_EQ(backward_granularity(148, 7168, 2048).default_rows, 4736);
}

TEST(Granularity, TheNarrowestPhaseCounts) {
    EXPECT_EQ(forward_granularity(100, 1024, 4096).floor_rows, 6400);   // H: 6553600 / 1024
    EXPECT_EQ(backward_granularity(100, 4096, 1024).floor_rows, 6400);  // I
    EXPECT_EQ(backward_granularity(100, 1024, 4096).floor_rows, 6400);  // H
}

TEST(Granularity, AtLeastOneTileAndRoundedUp) {
    EXPECT_EQ(forward_granularity(1, 7168, 2048).floor_rows, 16);
    EXPECT_EQ(forward_granularity(1, 7168, 2048).default_rows, 128);
    EXPECT_EQ(forward_granularity(1, 8, 8).default_rows, 8192);
    EXPECT_EQ(forward_granularity(3, 24, 24).floor_rows, 8192);  // 196608 / 24
    EXPECT_EQ(forward_granularity(3, 40, 40).floor_rows, 4916);  // 4915.2
    EXPECT_EQ(forward_granularity(3, 40, 40).default_rows, 4992);
}

}  // namespace
}  // namespace mok::plan
