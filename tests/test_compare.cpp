// Each bound just inside and just outside, and the errors that the bounds exist to catch.

#include "cpu/compare.h"

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

namespace {

using mok::Bound;
using mok::Bounds;
using mok::Mismatch;
using Shape = std::vector<int64_t>;
using Values = std::vector<double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::optional<Mismatch> check(const Values& found, const Values& want, const Shape& shape,
                              Bounds bounds = {}) {
    const std::vector<float> narrowed(found.begin(), found.end());
    return mok::compare("output", narrowed, want, shape, bounds);
}

void expect_passes(const std::optional<Mismatch>& mismatch) {
    EXPECT_FALSE(mismatch.has_value()) << mismatch->sentence();
}

void expect_fails(const std::optional<Mismatch>& mismatch, Bound bound, const Shape& coordinate) {
    ASSERT_TRUE(mismatch.has_value());
    EXPECT_EQ(mismatch->bound, bound) << mismatch->sentence();
    EXPECT_EQ(mismatch->coordinate, coordinate) << mismatch->sentence();
}

// [16, 64] of 1 and -1: every row's RMS is 1 and its norm 8, the tensor's norm 32.
const Shape kShape{16, 64};
Values signs() {
    Values values(16 * 64);
    for (size_t i = 0; i < values.size(); ++i) values[i] = (i * 7 / 3) % 2 == 0 ? 1.0 : -1.0;
    return values;
}

TEST(Compare, EqualTensorsPass) {
    expect_passes(check(signs(), signs(), kShape));
}

TEST(Compare, ElementBound) {
    // 0.05 of the RMS and 2^-7 of 1: 0.0578125. The row's error is 0.0072 of its norm.
    Values found = signs();
    found[3 * 64 + 17] += 0.0577;
    expect_passes(check(found, signs(), kShape));
    found = signs();
    found[3 * 64 + 17] += 0.0579;
    expect_fails(check(found, signs(), kShape), Bound::kElement, {3, 17});
}

TEST(Compare, ElementBoundGrowsWithTheElement) {
    // Row 0: one element of 64 with 63 ones: RMS sqrt(4159 / 64) = 8.061, bound 0.403 + 0.5.
    Values want = signs();
    want[5] = 64.0;
    Bounds bounds;
    bounds.tensor = 0.02;  // this element is most of the tensor's norm
    Values found = want;
    found[5] += 0.90;
    expect_passes(check(found, want, kShape, bounds));
    found[5] = want[5] + 0.91;
    expect_fails(check(found, want, kShape, bounds), Bound::kElement, {0, 5});
}

TEST(Compare, RowBound) {
    // Every element of one row is off by the same part, all others are right: the tensor's error
    // is a quarter of the row's, 0.0037.
    for (const double part : {0.0149, 0.0151}) {
        Values found = signs();
        for (size_t i = 2 * 64; i < 3 * 64; ++i) found[i] *= 1.0 + part;
        found[2 * 64 + 9] *= 1.0001;  // the largest error of the row
        if (part < 0.015) {
            expect_passes(check(found, signs(), kShape));
        } else {
            expect_fails(check(found, signs(), kShape), Bound::kRow, {2, 9});
        }
    }
}

TEST(Compare, RowFloor) {
    // A row of a tenth of the tensor's size (RMS sqrt(15.01 / 16) = 0.969), all of it off by 5%.
    Values want = signs();
    for (size_t i = 0; i < 64; ++i) want[i] *= 0.1;
    Values found = want;
    for (size_t i = 0; i < 64; ++i) found[i] *= 1.05;
    expect_fails(check(found, want, kShape), Bound::kRow, {0, 0});
    Bounds bounds;
    bounds.row_floor = 0.35;  // error 0.005 of 0.339: 0.0147
    expect_passes(check(found, want, kShape, bounds));
    bounds.row_floor = 0.34;  // of 0.329: 0.0152
    EXPECT_EQ(check(found, want, kShape, bounds)->bound, Bound::kRow);
}

TEST(Compare, TensorBound) {
    Values found = signs();
    for (double& value : found) value *= 1.0 + 0.00399;
    expect_passes(check(found, signs(), kShape));
    found = signs();
    for (double& value : found) value *= 1.0 + 0.00401;
    found[64 + 1] *= 1.0001;
    expect_fails(check(found, signs(), kShape), Bound::kTensor, {1, 1});
}

TEST(Compare, ZeroRowsAreExact) {
    Values want = signs();
    std::fill_n(want.begin() + 5 * 64, 64, 0.0);
    Values found = want;
    found[5 * 64] = -0.0;
    expect_passes(check(found, want, kShape));
    found[5 * 64 + 2] = 1e-42;  // even below the smallest normal number
    expect_fails(check(found, want, kShape), Bound::kZero, {5, 2});
}

TEST(Compare, SingleZerosAreExactWhereAsked) {
    Values want = signs();
    want[70] = 0.0;
    Values found = want;
    found[70] = 1e-6;
    expect_passes(check(found, want, kShape));
    Bounds bounds;
    bounds.every_zero_is_exact = true;
    expect_passes(check(want, want, kShape, bounds));
    expect_fails(check(found, want, kShape, bounds), Bound::kZero, {1, 6});
}

TEST(Compare, NonFiniteValues) {
    Values want = signs();
    want[64] = kNan;
    want[65] = kInf;
    want[66] = 1e39;  // beyond FP32
    Values found = want;
    expect_passes(check(found, want, kShape));
    found[64] = kInf;  // any non-finite value will do
    found[65] = kNan;
    expect_passes(check(found, want, kShape));
    found[64] = 1.0;
    expect_fails(check(found, want, kShape), Bound::kNonFinite, {1, 0});
    found = want;
    found[200] = kNan;
    expect_fails(check(found, want, kShape), Bound::kNonFinite, {3, 8});
    found[200] = -kInf;
    expect_fails(check(found, want, kShape), Bound::kNonFinite, {3, 8});

    // They hide no error in the rest of their row.
    found = want;
    found[67] += 0.06;
    expect_fails(check(found, want, kShape), Bound::kElement, {1, 3});
}

TEST(Compare, VectorIsOneRow) {
    Values want(64, 1.0);
    want[3] = 1e-3;  // a small element of a row of ones is held to the row's size
    Values found = want;
    found[3] = 0.02;
    expect_passes(check(found, want, {64}));
    found[3] = 0.06;
    expect_fails(check(found, want, {64}), Bound::kElement, {3});
    // As [64, 1] the rows are short and held to the tensor's size: the same bound.
    found[3] = 0.014;
    expect_passes(check(found, want, {64, 1}));
    found[3] = 0.017;
    expect_fails(check(found, want, {64, 1}), Bound::kRow, {3, 0});
}

TEST(Compare, TinyTensors) {
    expect_passes(check({1.0149}, {1.0}, {1, 1}));
    expect_fails(check({1.0151}, {1.0}, {1, 1}), Bound::kRow, {0, 0});
    expect_passes(check({1.0149}, {1.0}, {}));
    Bounds bounds;  // a sum of usual size 1 that came out as 0.1
    bounds.min_rms = 1.0;
    expect_passes(check({0.1149}, {0.1}, {1}, bounds));
    expect_fails(check({0.1151}, {0.1}, {1}, bounds), Bound::kRow, {0});
    expect_fails(check({0.1149}, {0.1}, {1}), Bound::kElement, {0});
    expect_passes(check({}, {}, {0, 4}));
    expect_passes(check({}, {}, {4, 0}));
}

TEST(Compare, ErrorsBelowTheSmallestNormalCountAsNone) {
    const Values want(64, 1e-44);
    expect_passes(check(Values(64, 0.0), want, {1, 64}));
    expect_fails(check(Values(64, 2e-38), want, {1, 64}), Bound::kElement, {0, 0});
}

TEST(Compare, RefusesLengthsThatAreNotTheShape) {
    EXPECT_THROW(check({1.0}, {1.0}, {2}), std::invalid_argument);
    EXPECT_THROW(check({1.0, 2.0}, {1.0}, {1}), std::invalid_argument);
}

TEST(Compare, Sentences) {
    Values found = signs();
    Values want = signs();
    for (size_t i = 3 * 64; i < 4 * 64; ++i) found[i] = 1.02 * want[i];
    found[3 * 64 + 17] = 1.25;
    want[3 * 64 + 17] = 1.2;
    // sqrt(63 * 0.02^2 + 0.05^2) / sqrt(63 + 1.2^2) = 0.020733
    EXPECT_EQ(
        check(found, want, kShape)->sentence(),
        "output[3,17]: found 1.25, expected 1.2 (row error 0.02073 of its norm, bound 0.015)");
    found = signs();
    for (double& value : found) value *= 1.005;
    EXPECT_EQ(check(found, signs(), kShape)->sentence(),
              "output[0,0]: found 1.005, expected 1 (tensor error 0.005 of its norm, "
              "bound 0.004)");
    EXPECT_EQ(check({1.5}, {1.25}, {1})->sentence(),
              "output[0]: found 1.5, expected 1.25 (error 0.25, bound 0.07227)");
    EXPECT_EQ(check({0.5}, {0.0}, {1})->sentence(),
              "output[0]: found 0.5, expected 0 (exactly zero)");
    EXPECT_EQ(check({kNan}, {2.0}, {1})->sentence(),
              "output[0]: found nan, expected 2 (a finite value)");
    EXPECT_EQ(check({1.0}, {kInf}, {1})->sentence(),
              "output[0]: found 1, expected inf (NaN or Inf)");
}

// ---- a product as a backend computes it: BF16 operands, FP32 sums, one rounding to BF16

float to_bf16(float value) {  // round to nearest even, by the format's definition
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    return std::bit_cast<float>(rounded);
}

class CompareProduct : public testing::Test {
  protected:
    static constexpr int64_t kRows = 64, kCols = 96, kDepth = 128;
    using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

    void SetUp() override {
        const Matrix a = random_bf16(kRows, kDepth);
        const Matrix b = random_bf16(kDepth, kCols);
        first_ = a.leftCols(kDepth / 2) * b.topRows(kDepth / 2);
        want_ = a * b;
        found_ = want_.unaryExpr([](double v) { return double(to_bf16(float(v))); });
    }

    static Matrix random_bf16(int64_t rows, int64_t cols) {
        static std::mt19937 rng(7);
        std::normal_distribution<float> normal;
        Matrix m(rows, cols);
        for (double& value : m.reshaped()) value = double(to_bf16(normal(rng)));
        return m;
    }

    std::optional<Mismatch> check_found() const {
        const auto flat = [](const Matrix& m) { return Values(m.data(), m.data() + m.size()); };
        return check(flat(found_), flat(want_), {kRows, kCols});
    }

    Matrix want_, found_, first_;  // first_: only the first half of the sum
};

TEST_F(CompareProduct, RoundedPasses) {
    expect_passes(check_found());
}

TEST_F(CompareProduct, SwappedRowsFail) {
    found_.row(10).swap(found_.row(11));
    const auto mismatch = check_found();
    ASSERT_TRUE(mismatch.has_value());
    EXPECT_EQ(mismatch->coordinate[0], 10);
}

TEST_F(CompareProduct, DoubledFails) {
    found_ *= 2.0;
    EXPECT_TRUE(check_found().has_value());
}

TEST_F(CompareProduct, DroppedPartFails) {
    found_.row(5) = first_.row(5);
    const auto mismatch = check_found();
    ASSERT_TRUE(mismatch.has_value());
    EXPECT_EQ(mismatch->coordinate[0], 5);
}

TEST_F(CompareProduct, TransposedTileFails) {
    const Matrix tile = found_.block(16, 32, 8, 8).transpose();
    found_.block(16, 32, 8, 8) = tile;
    const auto mismatch = check_found();
    ASSERT_TRUE(mismatch.has_value());
    EXPECT_EQ(mismatch->coordinate[0], 16);
}

TEST_F(CompareProduct, CoarserRoundingFails) {  // 4 bits of significand less than BF16
    found_ = want_.unaryExpr([](double v) {
        int exponent = 0;
        const double significand = std::frexp(v, &exponent);
        return std::ldexp(std::round(significand * 16) / 16, exponent);
    });
    EXPECT_TRUE(check_found().has_value());
}

// ---- bits

TEST(CompareBits, NamesTheFirstDifference) {
    const std::vector<float> a{1.0f, 2.0f, 1.25f, 0.0f, 3.0f, 4.0f};
    std::vector<float> b = a;
    const Shape shape{2, 3};
    EXPECT_FALSE(mok::compare_bits<float>("output", a, b, shape).has_value());
    b[2] = 1.5f;
    b[3] = -0.0f;
    const auto mismatch = mok::compare_bits<float>("output", a, b, shape);
    expect_fails(mismatch, Bound::kBits, {0, 2});
    EXPECT_EQ(mismatch->sentence(), "output[0,2]: found bits 0x3fa00000, expected 0x3fc00000");
    b[2] = a[2];
    expect_fails(mok::compare_bits<float>("output", a, b, shape), Bound::kBits, {1, 0});
}

TEST(CompareBits, NanOfEqualBitsIsEqual) {
    const std::vector<float> a{std::numeric_limits<float>::quiet_NaN()};
    EXPECT_FALSE(mok::compare_bits<float>("output", a, a, Shape{1}).has_value());
}

TEST(CompareBits, SixteenBitsAndRefusals) {
    const std::vector<uint16_t> a{0x3fa0, 0x0001}, b{0x3fa0, 0x8001};
    EXPECT_EQ(mok::compare_bits<uint16_t>("y", a, b, Shape{2})->sentence(),
              "y[1]: found bits 0x0001, expected 0x8001");
    EXPECT_THROW((void)mok::compare_bits<uint16_t>("y", a, b, Shape{3}), std::invalid_argument);
    const auto bytes = std::as_bytes(std::span(a));
    EXPECT_THROW((void)mok::compare_raw_bits("y", bytes, bytes, Shape{2}, 3),
                 std::invalid_argument);
    EXPECT_THROW((void)mok::compare_raw_bits("y", bytes.first(3), bytes.first(3), Shape{1}, 2),
                 std::invalid_argument);
}

}  // namespace
