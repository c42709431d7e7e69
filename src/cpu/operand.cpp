#include "cpu/operand.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace mok::cpu {
namespace {

// The values of all E4M3 bytes.
const std::array<float, 256> kE4m3Values = [] {
    std::array<float, 256> values;
    for (int bits = 0; bits < 256; ++bits) values[bits] = to_f32(E4m3{static_cast<uint8_t>(bits)});
    return values;
}();

void clear(Operand& out, Precision precision, Layout layout) {
    out.layout = layout;
    out.scaled = precision == Precision::Fp8Block;
    std::fill_n(out.block.at, kBlock * kBlock, 0.0f);
    std::fill_n(out.scale, kBlock, 0.0f);
}

// FP8 elements of outer rows with K innermost, and the scales of a group of `rows_per_scale` rows.
struct KInnerSource {
    const E4m3* elements;
    const std::byte* scales;
    int64_t padded_k;
    int64_t rows_per_scale;
};

void load_fp8_block(Operand& out, const KInnerSource& from, int64_t row, int64_t num, int64_t k) {
    const auto* scales = reinterpret_cast<const float*>(from.scales);
    for (int64_t r = 0; r < num; ++r) {
        const E4m3* elements = from.elements + (row + r) * from.padded_k + k;
        float* to = out.block.at + r * kBlock;
        for (int64_t i = 0; i < kBlock; ++i) to[i] = kE4m3Values[elements[i].bits];
        out.scale[r] =
            scales[Fp8Block::scale_index((row + r) / from.rows_per_scale, k / Fp8Block::kBlock,
                                         from.padded_k / Fp8Block::kBlock)];
    }
}

// A block's values. From 2^-124 on no product of an element and the scale needs rounding.
void dequantise_block(float* to, const E4m3* elements, Ue8m0 scale, int64_t stride) {
    constexpr uint8_t kLeastExact = 127 - 124;
    if (scale.bits < kLeastExact) {
        for (int64_t i = 0; i < Mxfp8::kBlock; ++i) {
            to[i * stride] = Mxfp8::dequantise_f32(elements[i], scale);
        }
        return;
    }
    const float factor = to_f32(scale);
    for (int64_t i = 0; i < Mxfp8::kBlock; ++i) {
        to[i * stride] = kE4m3Values[elements[i].bits] * factor;
    }
}

void load_mxfp8(Operand& out, const KInnerSource& from, int64_t row, int64_t num, int64_t k) {
    const auto* scales = reinterpret_cast<const Ue8m0*>(from.scales);
    const int64_t num_blocks = from.padded_k / Mxfp8::kBlock;
    for (int64_t r = 0; r < num; ++r) {
        const E4m3* elements = from.elements + (row + r) * from.padded_k + k;
        for (int64_t i = 0; i < kBlock; i += Mxfp8::kBlock) {
            const int64_t block = (k + i) / Mxfp8::kBlock;
            dequantise_block(out.block.at + r * kBlock + i, elements + i,
                             scales[Mxfp8::scale_index(row + r, block, num_blocks)], 1);
        }
    }
}

// One column of slots from BF16, quantised in blocks along it.
template <class Recipe>
void quantise_slots(Operand& out, const SlotRows& slots, int64_t col, int64_t c) {
    for (int64_t begin = 0; begin < kBlock; begin += Recipe::kBlock) {
        const BlockSource source{slots.rows + begin * slots.cols + col + c, slots.cols,
                                 std::clamp<int64_t>(slots.num_rows - begin, 0, Recipe::kBlock)};
        E4m3 elements[Recipe::kBlock];
        const auto scale = quantise_block<Recipe>(source, elements);
        float* to = out.block.at + begin * kBlock + c;
        if constexpr (std::is_same_v<Recipe, Mxfp8>) {
            dequantise_block(to, elements, scale, kBlock);
        } else {
            out.scale[c] = scale;
            for (int64_t i = 0; i < kBlock; ++i) to[i * kBlock] = kE4m3Values[elements[i].bits];
        }
    }
}

}  // namespace

Fp8Matrix fp8_matrix(const std::byte* weights, const plan::Fp8MatrixMap& map, int64_t expert) {
    const std::byte* elements = weights + map.elements + expert * map.expert_elements;
    return {reinterpret_cast<const E4m3*>(elements),
            weights + map.scales + expert * map.expert_scales, map.outer, map.padded_k};
}

void load_fp8_rows(Operand& out, Precision precision, const Fp8Tile& tile, int64_t num_rows,
                   int64_t k) {
    clear(out, precision, Layout::KInner);
    const KInnerSource from{tile.elements, tile.scales, tile.padded, 1};
    if (out.scaled) return load_fp8_block(out, from, 0, num_rows, k);
    load_mxfp8(out, from, 0, num_rows, k);
}

void load_fp8_features(Operand& out, Precision precision, const Fp8Matrix& matrix, int64_t outer,
                       int64_t k) {
    clear(out, precision, Layout::KInner);
    const KInnerSource from{matrix.elements, matrix.scales, matrix.padded_k, Fp8Block::kWeightRows};
    const int64_t num = std::clamp<int64_t>(matrix.outer - outer, 0, kBlock);
    if (out.scaled) return load_fp8_block(out, from, outer, num, k);
    load_mxfp8(out, from, outer, num, k);
}

void load_slots(Operand& out, Precision precision, const SlotRows& slots, int64_t col) {
    if (precision == Precision::BF16) {
        out.layout = Layout::KOuter;
        out.scaled = false;
        return load_rows(out.block, slots.rows, slots.cols, slots.num_rows, col, slots.cols);
    }
    clear(out, precision, Layout::KOuter);
    const int64_t num_cols = std::clamp<int64_t>(slots.cols - col, 0, kBlock);
    for (int64_t c = 0; c < num_cols; ++c) {
        if (out.scaled) {
            quantise_slots<Fp8Block>(out, slots, col, c);
        } else {
            quantise_slots<Mxfp8>(out, slots, col, c);
        }
    }
}

void add_product(Block& acc, const Operand& features, const Operand& tokens, int64_t num_tokens) {
    if (!features.scaled) {
        return multiply_rows(acc, features.block, features.layout, tokens.block, tokens.layout,
                             num_tokens);
    }
    static thread_local Block sums;
    std::fill_n(sums.at, kBlock * kBlock, 0.0f);
    multiply_rows(sums, features.block, features.layout, tokens.block, tokens.layout, num_tokens);
    for (int64_t t = 0; t < num_tokens; ++t) {
        const float* from = sums.at + t * kBlock;
        float* to = acc.at + t * kBlock;
        for (int64_t f = 0; f < kBlock; ++f) {
            to[f] = std::fma(from[f], tokens.scale[t] * features.scale[f], to[f]);
        }
    }
}

}  // namespace mok::cpu
