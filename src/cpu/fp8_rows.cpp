#include "cpu/fp8_rows.h"

#include <algorithm>
#include <cstring>

#include "cpu/gemm.h"

namespace mok::cpu {
namespace {

template <class Recipe>
constexpr int64_t kBlocks = kBlock / Recipe::kBlock;  // of a chunk

template <class Recipe>
typename Recipe::Scale& scale_at(const Fp8Tile& tile, int64_t row, int64_t block) {
    auto* scales = reinterpret_cast<typename Recipe::Scale*>(tile.scales);
    return scales[Recipe::scale_index(row, block, tile.padded / Recipe::kBlock)];
}

template <class Recipe>
void quantise_to(const Bf16* from, int64_t count, E4m3* elements, typename Recipe::Scale* scales) {
    for (int64_t b = 0; b < kBlocks<Recipe>; ++b) {
        const int64_t begin = b * Recipe::kBlock;
        const BlockSource source{from + begin, 1,
                                 std::clamp<int64_t>(count - begin, 0, Recipe::kBlock)};
        scales[b] = quantise_block<Recipe>(source, elements + begin);
    }
}

template <class Recipe>
void quantise_row_as(const Bf16* from, int64_t cols, Fp8Row to) {
    auto* scales = reinterpret_cast<typename Recipe::Scale*>(to.scales);
    for (int64_t col = 0; col < cols; col += kBlock) {
        quantise_to<Recipe>(from + col, std::min(cols - col, kBlock), to.elements + col,
                            scales + col / Recipe::kBlock);
    }
}

template <class Recipe>
void place_row_as(const Fp8Row& from, const Fp8Tile& to, int64_t row) {
    const auto* scales = reinterpret_cast<const typename Recipe::Scale*>(from.scales);
    for (int64_t b = 0; b < to.padded / Recipe::kBlock; ++b) {
        scale_at<Recipe>(to, row, b) = scales[b];
    }
}

template <class Recipe>
void quantise_chunk_as(const Bf16* from, int64_t count, const Fp8Chunk& to) {
    typename Recipe::Scale scales[kBlocks<Recipe>];
    quantise_to<Recipe>(from, count, to.tile.elements + to.row * to.tile.padded + to.col, scales);
    for (int64_t b = 0; b < kBlocks<Recipe>; ++b) {
        scale_at<Recipe>(to.tile, to.row, to.col / Recipe::kBlock + b) = scales[b];
    }
}

template <class Recipe>
void keep_sides(const SavedRule& rule, const Bf16* from, int64_t count, const Fp8Chunk& to) {
    E4m3* elements = to.tile.elements + to.row * to.tile.padded + to.col;
    for (int64_t i = 0; i < count; ++i) {
        const auto scale = scale_at<Recipe>(to.tile, to.row, (to.col + i) / Recipe::kBlock);
        elements[i] = on_its_side<Recipe>(rule.which, rule.activation, from[i], elements[i], scale);
    }
}

template <class Recipe>
void dequantise_chunk_as(const Fp8Chunk& from, float* to) {
    const E4m3* elements = from.tile.elements + from.row * from.tile.padded + from.col;
    for (int64_t i = 0; i < kBlock; ++i) {
        const auto scale = scale_at<Recipe>(from.tile, from.row, (from.col + i) / Recipe::kBlock);
        to[i] = Recipe::dequantise_f32(elements[i], scale);
    }
}

}  // namespace

void quantise_row(Precision precision, const Bf16* from, int64_t cols, Fp8Row to) {
    if (precision == Precision::Fp8Block) return quantise_row_as<Fp8Block>(from, cols, to);
    quantise_row_as<Mxfp8>(from, cols, to);
}

void place_row(Precision precision, const Fp8Row& from, const Fp8Tile& to, int64_t row) {
    std::memcpy(to.elements + row * to.padded, from.elements, to.padded);
    if (precision == Precision::Fp8Block) return place_row_as<Fp8Block>(from, to, row);
    place_row_as<Mxfp8>(from, to, row);
}

void quantise_chunk(Precision precision, const Bf16* from, int64_t count, const Fp8Chunk& to) {
    if (precision == Precision::Fp8Block) return quantise_chunk_as<Fp8Block>(from, count, to);
    quantise_chunk_as<Mxfp8>(from, count, to);
}

void save_chunk(Precision precision, const SavedRule& rule, const Bf16* from, int64_t count,
                const Fp8Chunk& to) {
    quantise_chunk(precision, from, count, to);
    if (precision == Precision::Fp8Block) return keep_sides<Fp8Block>(rule, from, count, to);
    keep_sides<Mxfp8>(rule, from, count, to);
}

void dequantise_chunk(Precision precision, const Fp8Chunk& from, float* to) {
    if (precision == Precision::Fp8Block) return dequantise_chunk_as<Fp8Block>(from, to);
    dequantise_chunk_as<Mxfp8>(from, to);
}

}  // namespace mok::cpu
