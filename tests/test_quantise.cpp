// Matrices of FP8 blocks: which element a block holds, its padding, the tiles that scales lie in,
// and products of quantised operands against FP64.
// Sanitizers: asan
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "cpu/block_product.h"
#include "cpu/quantise.h"
#include "math/scale_tiles.h"

namespace mok::cpu {
namespace {

// ---- the tiles of scales

// "1D Block Scaling Factors Layout" of cuBLAS's documentation, read from memory to indices: a
// tile's 512 bytes by the published inverse, and tiles row-major.
TEST(ScaleTiles, AgreeWithThePublishedInverse) {
    for (const auto& [num_outer, num_inner] : std::vector<std::pair<int64_t, int64_t>>{
             {128, 4}, {256, 8}, {1, 1}, {127, 3}, {129, 5}, {300, 17}, {512, 224}}) {
        const int64_t tiles_across = (num_inner + 3) / 4;
        const int64_t size = (num_outer + 127) / 128 * tiles_across * 512;
        ASSERT_EQ(num_tiled_scales(num_outer, num_inner), size);
        int64_t found = 0;
        for (int64_t at = 0; at < size; ++at) {
            const int64_t tile = at / 512, offset = at % 512;
            const int64_t outer = tile / tiles_across * 128 + (offset % 16) / 4 * 32 + offset / 16;
            const int64_t inner = tile % tiles_across * 4 + offset % 4;
            if (outer >= num_outer || inner >= num_inner) continue;
            ASSERT_EQ(scale_tile_index(outer, inner, num_inner), at) << outer << ", " << inner;
            ++found;
        }
        ASSERT_EQ(found, num_outer * num_inner) << "every scale has one place";
    }
}

TEST(ScaleTiles, PlacesWorkedOutByHand) {
    EXPECT_EQ(scale_tile_index(0, 3, 4), 3);
    EXPECT_EQ(scale_tile_index(1, 0, 4), 16);
    EXPECT_EQ(scale_tile_index(32, 0, 4), 4);
    EXPECT_EQ(scale_tile_index(127, 3, 4), 511);
    EXPECT_EQ(scale_tile_index(0, 4, 5), 512) << "the second tile of the first 128 rows";
    EXPECT_EQ(scale_tile_index(128, 0, 5), 1024) << "5 blocks take two tiles a row";
}

// ---- matrices

struct Matrix {
    int64_t rows, cols, stride;
    std::vector<Bf16> data;

    Bf16 at(int64_t r, int64_t c) const { return data[r * stride + c]; }
    Bf16Matrix view() const { return {data.data(), rows, cols, stride}; }
};

// Values of many sizes. What lies between rows is NaN: a quantiser that reads it shows it.
Matrix random_matrix(int64_t rows, int64_t cols, unsigned seed) {
    Matrix m{rows, cols, cols + 5, {}};
    m.data.assign(rows * m.stride, Bf16{0x7fc0});
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
            const int exponent = static_cast<int>((r * 7 + c / 32 * 3) % 19) - 9;
            m.data[r * m.stride + c] = to_bf16(std::ldexp(normal(rng), exponent));
        }
    }
    return m;
}

struct ScaleRule {
    int64_t rows_per_scale;
    bool transposed;
};

// Every element and scale from its block's amax, gathered here by index. Padding is zero.
template <class Recipe>
void expect_quantised(const Matrix& m, const Quantised<Recipe>& q, ScaleRule rule) {
    const int64_t outer = rule.transposed ? m.cols : m.rows, k = rule.transposed ? m.rows : m.cols;
    const auto value = [&](int64_t o, int64_t i) {
        return rule.transposed ? m.at(i, o) : m.at(o, i);
    };
    ASSERT_EQ(q.outer, outer);
    ASSERT_EQ(q.k, k);
    ASSERT_EQ(q.padded_k() % Recipe::kBlock, 0);
    ASSERT_LT(q.padded_k() - k, Recipe::kBlock);
    ASSERT_EQ(q.elements.size(), static_cast<size_t>(outer * q.padded_k()));
    for (int64_t o = 0; o < outer; ++o) {
        for (int64_t i = 0; i < q.padded_k(); ++i) {
            if (i >= k) {
                ASSERT_EQ(q.element_at(o, i).bits, 0) << o << ", " << i;
                continue;
            }
            double amax = 0.0;
            const int64_t first_row = o / rule.rows_per_scale * rule.rows_per_scale;
            for (int64_t r = first_row; r < std::min(first_row + rule.rows_per_scale, outer); ++r) {
                const int64_t first = i / Recipe::kBlock * Recipe::kBlock;
                for (int64_t j = first; j < std::min(first + Recipe::kBlock, k); ++j) {
                    amax = std::max(amax, std::abs(double{to_f32(value(r, j))}));
                }
            }
            const auto scale = Recipe::scale_of({to_bf16(static_cast<float>(amax)).bits});
            const auto found = q.scale_at(o, i / Recipe::kBlock);
            ASSERT_EQ(std::memcmp(&found, &scale, sizeof scale), 0) << o << ", " << i;
            ASSERT_EQ(q.element_at(o, i).bits, Recipe::element_of(value(o, i), scale).bits)
                << o << ", " << i;
        }
    }
}

template <class Recipe>
class Quantise : public testing::Test {};
using Recipes = testing::Types<Fp8Block, Mxfp8>;
TYPED_TEST_SUITE(Quantise, Recipes);

TYPED_TEST(Quantise, RowsOfEveryTail) {
    for (const int64_t cols : {1, 31, 32, 33, 96, 127, 128, 129, 300}) {
        const Matrix m = random_matrix(5, cols, static_cast<unsigned>(cols));
        expect_quantised<TypeParam>(m, quantise_rows<TypeParam>(m.view()), {1, false});
    }
}

TYPED_TEST(Quantise, ColumnsOfGroupsOf1And33And44Rows) {
    for (const int64_t rows : {1, 33, 44, 128, 172}) {
        const Matrix m = random_matrix(rows, 37, static_cast<unsigned>(rows));
        expect_quantised<TypeParam>(m, quantise_columns<TypeParam>(m.view()), {1, true});
    }
}

TYPED_TEST(Quantise, WeightsInBothOrientations) {
    const int64_t per_scale = std::is_same_v<TypeParam, Fp8Block> ? 128 : 1;
    for (const auto& [rows, cols] :
         std::vector<std::pair<int64_t, int64_t>>{{128, 128}, {130, 45}, {7, 260}}) {
        const Matrix m = random_matrix(rows, cols, 3);
        const auto q = quantise_weights<TypeParam>(m.view());
        expect_quantised<TypeParam>(m, q.by_rows, {per_scale, false});
        expect_quantised<TypeParam>(m, q.by_columns, {per_scale, true});
    }
}

TYPED_TEST(Quantise, NothingOfNothing) {
    const Matrix none = random_matrix(0, 64, 1);
    EXPECT_TRUE(quantise_rows<TypeParam>(none.view()).elements.empty());
    const auto q = quantise_columns<TypeParam>(none.view());
    EXPECT_EQ(q.outer, 64);
    EXPECT_EQ(q.num_blocks, 0);
    EXPECT_TRUE(q.scales.empty());
}

TEST(QuantiseWeights, OrientationsOfFp8BlockHoldTheSameElements) {
    const Matrix m = random_matrix(140, 260, 4);
    const auto q = quantise_weights<Fp8Block>(m.view());
    for (int64_t r = 0; r < m.rows; ++r) {
        for (int64_t c = 0; c < m.cols; ++c) {
            ASSERT_EQ(q.by_rows.element_at(r, c).bits, q.by_columns.element_at(c, r).bits);
        }
    }
    EXPECT_EQ(q.by_rows.scales.size(), 2u * 3u);
}

TEST(QuantiseMxfp8, ScalesBehindTheEndAreZero) {
    const Matrix m = random_matrix(3, 40, 5);
    const auto q = quantise_rows<Mxfp8>(m.view());
    ASSERT_EQ(q.scales.size(), 512u);
    std::set<int64_t> used;
    for (int64_t r = 0; r < 3; ++r) {
        for (int64_t b = 0; b < 2; ++b) used.insert(scale_tile_index(r, b, 2));
    }
    for (int64_t i = 0; i < 512; ++i) {
        ASSERT_TRUE(used.contains(i) || q.scales[i].bits == 0) << i;
    }
}

// ---- products

double scale_value(float scale) {
    return scale;
}
double scale_value(Ue8m0 scale) {
    return to_f32(scale);
}

template <class Recipe>
double value_at(const Quantised<Recipe>& q, int64_t row, int64_t k) {
    return double{to_f32(q.element_at(row, k))} * scale_value(q.scale_at(row, k / Recipe::kBlock));
}

template <class Recipe>
void expect_product(const Quantised<Recipe>& tokens, const Quantised<Recipe>& features) {
    std::mt19937 rng(9);
    std::normal_distribution<float> normal;
    std::vector<float> before(tokens.outer * features.outer);
    for (float& v : before) v = normal(rng);
    std::vector<float> c = before;
    multiply_blocks(c.data(), tokens, features);
    const double chunks = static_cast<double>((tokens.k + 127) / 128);
    for (int64_t t = 0; t < tokens.outer; ++t) {
        for (int64_t f = 0; f < features.outer; ++f) {
            const int64_t at = t * features.outer + f;
            double want = before[at], size = std::abs(want);
            for (int64_t k = 0; k < tokens.k; ++k) {
                const double term = value_at(tokens, t, k) * value_at(features, f, k);
                want += term;
                size += std::abs(term);
            }
            // 128 sums in a chunk, the scales' product and a sum for each chunk.
            ASSERT_NEAR(c[at], want, (128 + 2 + chunks) * 0x1p-24 * size) << t << ", " << f;
        }
    }
}

TYPED_TEST(Quantise, ProductsOfActivationsByWeightsAgainstFp64) {
    for (const int64_t k : {1, 128, 300}) {
        const Matrix x = random_matrix(70, k, 6), w = random_matrix(150, k, 7);
        expect_product<TypeParam>(quantise_rows<TypeParam>(x.view()),
                                  quantise_weights<TypeParam>(w.view()).by_rows);
    }
}

TYPED_TEST(Quantise, ProductsOfTwoTransposedOperandsAgainstFp64) {
    const Matrix x = random_matrix(172, 20, 8), d = random_matrix(172, 131, 9);
    expect_product<TypeParam>(quantise_columns<TypeParam>(d.view()),
                              quantise_columns<TypeParam>(x.view()));
}

// A weight's second orientation multiplies what its first does, transposed.
TYPED_TEST(Quantise, ProductsByAWeightsColumnsAgainstFp64) {
    const Matrix d = random_matrix(9, 150, 10), w = random_matrix(150, 140, 11);
    expect_product<TypeParam>(quantise_rows<TypeParam>(d.view()),
                              quantise_weights<TypeParam>(w.view()).by_columns);
}

// The two chunks hold the same elements, 448, with scales 2^20 apart. Each chunk's sum is scaled
// before it joins c; one sum over all of K could be scaled by one of them only.
TEST(MultiplyFp8Block, EveryChunkIsSummedAlone) {
    Matrix x{1, 256, 256, std::vector<Bf16>(256, to_bf16(0.0f))};
    for (int64_t i = 0; i < 128; ++i) x.data[i] = to_bf16(448.0f);
    for (int64_t i = 128; i < 256; ++i) x.data[i] = to_bf16(0x1p-20f);
    const Matrix ones{1, 256, 256, std::vector<Bf16>(256, to_bf16(448.0f))};
    const auto tokens = quantise_rows<Fp8Block>(x.view());
    const auto weight = quantise_weights<Fp8Block>(ones.view()).by_rows;
    EXPECT_EQ(tokens.scale_at(0, 0), 1.0f);
    EXPECT_EQ(tokens.scale_at(0, 1), 0x1p-20f / 448.0f);
    float c = -448.0f * 448.0f * 128.0f;
    multiply_blocks(&c, tokens, weight);
    // The first chunk cancels c exactly; what is left is the second, 128 * 448 * 2^-20 by a scale
    // rounded once.
    EXPECT_NEAR(c, 128 * 448 * 0x1p-20, 128 * 448 * 0x1p-20 * 0x1p-22);
}

TYPED_TEST(Quantise, ProductsRefuseOperandsOfDifferentK) {
    const auto a = quantise_rows<TypeParam>(random_matrix(2, 64, 1).view());
    const auto b = quantise_rows<TypeParam>(random_matrix(2, 65, 1).view());
    std::vector<float> c(4);
    EXPECT_THROW(multiply_blocks(c.data(), a, b), std::invalid_argument);
}

TYPED_TEST(Quantise, NaNReachesItsTokenOnly) {
    Matrix x = random_matrix(3, 128, 12);
    x.data[x.stride + 4] = Bf16{0x7fc0};
    const Matrix w = random_matrix(4, 128, 13);
    std::vector<float> c(12, 0.0f);
    multiply_blocks(c.data(), quantise_rows<TypeParam>(x.view()),
                    quantise_weights<TypeParam>(w.view()).by_rows);
    for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(std::isnan(c[i]), i / 4 == 1) << i;
}

}  // namespace
}  // namespace mok::cpu
