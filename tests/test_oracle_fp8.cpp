// The oracle's quantisation on values worked out by hand from the formats' definitions.
// Sanitizers: asan
#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>

#include "cpu/oracle_fp8.h"

namespace mok::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Matrix row(std::initializer_list<double> values) {
    Matrix m(1, static_cast<Eigen::Index>(values.size()));
    std::copy(values.begin(), values.end(), m.data());
    return m;
}
void expect_held(const Matrix& found, std::initializer_list<double> want) {
    ASSERT_EQ(found.size(), static_cast<Eigen::Index>(want.size()));
    for (Eigen::Index i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found.data()[i], want.begin()[i]) << "element " << i;
    }
}

// amax 448: a scale of 1 in both recipes. Steps of 1/8 from 1 on, of 2^-9 below 2^-6; ties to even.
TEST(OracleFp8, ElementsOfAScaleOfOne) {
    for (const Quantisation recipe : {Quantisation::Fp8Block, Quantisation::Mxfp8}) {
        expect_held(in_blocks(row({448, -1.0625, 1.1875, 1.07, 0x1p-10, 0x3p-10, 0x5p-11, 432, 17}),
                              recipe, 1, 16),
                    {448, -1, 1.25, 1.125, 0, 0x1p-8, 0x1p-9, 448, 16});
    }
}

// Fp8Block: amax becomes 448 whatever it is; 7 / 448 = 2^-6. Mxfp8: 7 = 448 * 2^-6 exactly, and 7.5
// needs the next power, under which 0.3 is 9.6 / 32: in steps of 1.
TEST(OracleFp8, Scales) {
    expect_held(in_blocks(row({7, 0.3}), Quantisation::Fp8Block, 1, 128), {7, 0.3125});
    expect_held(in_blocks(row({7, 0.3}), Quantisation::Mxfp8, 1, 32), {7, 0.3125});
    expect_held(in_blocks(row({7.5, 0.3}), Quantisation::Mxfp8, 1, 32), {7.5, 0.3125});
    expect_held(in_blocks(row({8.5, 0.3}), Quantisation::Mxfp8, 1, 32), {8, 0.3125});
    const float scale = 3.0f / 448.0f;
    const Matrix third = in_blocks(row({3, 1}), Quantisation::Fp8Block, 1, 128);
    EXPECT_EQ(third(0, 0), 448.0 * scale);
    EXPECT_EQ(third(0, 1), 144.0 * scale) << "1 is 149.3 of the scale, in steps of 16";
}

TEST(OracleFp8, BlocksHaveScalesOfTheirOwn) {
    Matrix m(2, 2);
    m << 448, 1, 0x1p-11, 0x1p-11;
    const Matrix by_rows = in_blocks(m, Quantisation::Mxfp8, 1, 2);
    EXPECT_EQ(by_rows(1, 0), 0x1p-11);
    const Matrix by_columns = in_blocks(m, Quantisation::Mxfp8, 2, 1);
    EXPECT_EQ(by_columns(1, 0), 0.0) << "beside 448";
    EXPECT_EQ(by_columns(1, 1), 0x1p-11) << "beside 1";
    const Matrix together = in_blocks(m, Quantisation::Fp8Block, 128, 128);
    EXPECT_EQ(together(1, 1), 0.0);
}

TEST(OracleFp8, ZerosInfinityAndNaN) {
    expect_held(in_blocks(row({0, 0}), Quantisation::Fp8Block, 1, 128), {0, 0});
    for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
        const Matrix m = in_blocks(row({1, bad, 2, 3}), Quantisation::Mxfp8, 1, 2);
        EXPECT_TRUE(std::isnan(m(0, 0)));
        EXPECT_TRUE(std::isnan(m(0, 1)));
        EXPECT_EQ(m(0, 2), 2);
        EXPECT_EQ(m(0, 3), 3);
    }
}

}  // namespace
}  // namespace mok::oracle
