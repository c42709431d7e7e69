// The one matrix product of the CPU backend against a double loop, and the promise that a token's
// result does not depend on its place: the bits of a row at every place of a tile.
// Sanitizers: asan
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cpu/block.h"

namespace mok::cpu {
namespace {

using Values = std::vector<float>;

Values random_values(int64_t count, unsigned seed) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    Values values(count);
    for (float& v : values) v = uniform(rng);
    return values;
}

// Element (outer, k) of an operand with row stride kBlock.
int64_t index_of(Layout layout, int64_t outer, int64_t k) {
    return layout == Layout::KInner ? outer * kBlock + k : k * kBlock + outer;
}

struct Layouts {
    Layout a, b;
};

class Gemm : public testing::TestWithParam<Layouts> {};

TEST_P(Gemm, EqualsADoubleLoopWithinTheRoundingOf128Terms) {
    const auto [a_layout, b_layout] = GetParam();
    const Values a = random_values(kBlock * kBlock, 1), b = random_values(kBlock * kBlock, 2);
    const Values before = random_values(kBlock * kBlock, 3);
    Values c = before;
    multiply_add(c.data(), a.data(), a_layout, b.data(), b_layout);
    for (int64_t j = 0; j < kBlockCols; ++j) {
        for (int64_t i = 0; i < kBlock; ++i) {
            double want = before[j * kBlock + i], size = std::abs(want);
            for (int64_t k = 0; k < kBlock; ++k) {
                const double term =
                    double{a[index_of(a_layout, i, k)]} * b[index_of(b_layout, j, k)];
                want += term;
                size += std::abs(term);
            }
            // Any order of n sums: error at most n * 2^-24 of the sum of the terms' sizes.
            EXPECT_NEAR(c[j * kBlock + i], want, (kBlock + 1) * 0x1p-24 * size) << i << ", " << j;
        }
    }
    // Nothing past column 63.
    for (int64_t i = kBlockCols * kBlock; i < kBlock * kBlock; ++i) ASSERT_EQ(c[i], before[i]);
}

TEST_P(Gemm, FormsTheSumFromZeroAndThenAddsIt) {
    const auto [a_layout, b_layout] = GetParam();
    const Values a = random_values(kBlock * kBlock, 4), b = random_values(kBlock * kBlock, 5);
    const Values before = random_values(kBlockCols * kBlock, 6);
    Values sum(kBlockCols * kBlock, 0.0f), c = before;
    multiply_add(sum.data(), a.data(), a_layout, b.data(), b_layout);
    multiply_add(c.data(), a.data(), a_layout, b.data(), b_layout);
    for (size_t i = 0; i < c.size(); ++i) ASSERT_EQ(c[i], before[i] + sum[i]) << i;
}

// The order of the sums of the builds whose training hash is one (docs/determinism.md): that of
// Eigen's kernel for AVX2, 24 rows at a time, of the last 8 rows even and odd k apart.
#if defined(__aarch64__) || (defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__))
TEST_P(Gemm, SumsInOneOrderOnX86AndArm) {
    const auto [a_layout, b_layout] = GetParam();
    const Values a = random_values(kBlock * kBlock, 9), b = random_values(kBlock * kBlock, 10);
    Values c(kBlockCols * kBlock, 0.0f);
    multiply_add(c.data(), a.data(), a_layout, b.data(), b_layout);
    for (int64_t j = 0; j < kBlockCols; ++j) {
        for (int64_t i = 0; i < kBlock; ++i) {
            float sum[2] = {0.0f, 0.0f};
            for (int64_t k = 0; k < kBlock; ++k) {
                float& part = sum[i < kBlock / 24 * 24 ? 0 : k % 2];
                part = std::fma(a[index_of(a_layout, i, k)], b[index_of(b_layout, j, k)], part);
            }
            ASSERT_EQ(c[j * kBlock + i], sum[0] + sum[1]) << i << ", " << j;
        }
    }
}
#endif

// Puts `row` at a place of b whose other rows are `filler`.
void place_row(Block& b, Layout layout, int64_t place, const Values& row) {
    for (int64_t k = 0; k < kBlock; ++k) b.at[index_of(layout, place, k)] = row[k];
}

TEST_P(Gemm, ARowHasTheSameBitsAtEveryPlaceOfATile) {
    const auto [a_layout, b_layout] = GetParam();
    const Values row = random_values(kBlock, 7);
    const float fillers[] = {0.0f, 1.5f, std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()};
    static Block a, b, c;
    const Values a_values = random_values(kBlock * kBlock, 8);
    std::copy(a_values.begin(), a_values.end(), a.at);
    std::vector<uint32_t> want;
    for (int64_t place = 0; place < kBlock; ++place) {
        std::fill_n(b.at, kBlock * kBlock, fillers[place % 4]);
        std::fill_n(c.at, kBlock * kBlock, 0.25f);
        place_row(b, b_layout, place, row);
        const int64_t rows_in_use = place + 1 + place % 3 * (kBlock - place - 1) / 2;
        multiply_rows(c, a, a_layout, b, b_layout, rows_in_use);
        std::vector<uint32_t> found;
        for (int64_t i = 0; i < kBlock; ++i) {
            found.push_back(std::bit_cast<uint32_t>(c.at[place * kBlock + i]));
        }
        if (place == 0) want = found;
        ASSERT_EQ(found, want) << "place " << place << " with " << rows_in_use << " rows in use";
    }
}

INSTANTIATE_TEST_SUITE_P(AllLayouts, Gemm,
                         testing::Values(Layouts{Layout::KInner, Layout::KInner},
                                         Layouts{Layout::KInner, Layout::KOuter},
                                         Layouts{Layout::KOuter, Layout::KInner},
                                         Layouts{Layout::KOuter, Layout::KOuter}),
                         [](const auto& info) {
                             const auto name = [](Layout l) {
                                 return l == Layout::KInner ? "KInner" : "KOuter";
                             };
                             return std::string("A") + name(info.param.a) + "B" +
                                    name(info.param.b);
                         });

}  // namespace
}  // namespace mok::cpu
