#include "cpu/quantise.h"

#include <algorithm>

namespace mok::cpu {

namespace {

// A matrix seen with K along its rows or along its columns.
struct View {
    const Bf16* data;
    int64_t outer, k;
    int64_t outer_stride, k_stride;
};

View view_by_rows(const Bf16Matrix& m) {
    return {m.data, m.rows, m.cols, m.stride, 1};
}
View view_by_columns(const Bf16Matrix& m) {
    return {m.data, m.cols, m.rows, 1, m.stride};
}

template <class Recipe>
BlockSource block_of(const View& v, int64_t row, int64_t block) {
    const int64_t begin = block * Recipe::kBlock;
    return {v.data + row * v.outer_stride + begin * v.k_stride, v.k_stride,
            std::min(Recipe::kBlock, v.k - begin)};
}

template <class Recipe>
Quantised<Recipe> quantise(const View& v, int64_t rows_per_scale) {
    Quantised<Recipe> to;
    to.outer = v.outer;
    to.k = v.k;
    to.num_blocks = (v.k + Recipe::kBlock - 1) / Recipe::kBlock;
    to.rows_per_scale = rows_per_scale;
    const int64_t num_groups = (v.outer + rows_per_scale - 1) / rows_per_scale;
    to.elements.resize(v.outer * to.padded_k());
    to.scales.resize(Recipe::num_scales(num_groups, to.num_blocks));
    for (int64_t group = 0; group < num_groups; ++group) {
        const int64_t begin = group * rows_per_scale;
        const int64_t end = std::min(begin + rows_per_scale, v.outer);
        for (int64_t block = 0; block < to.num_blocks; ++block) {
            Amax amax;
            for (int64_t row = begin; row < end; ++row) {
                amax = max_with(amax, block_of<Recipe>(v, row, block));
            }
            const auto scale = Recipe::scale_of(amax);
            to.scales[Recipe::scale_index(group, block, to.num_blocks)] = scale;
            for (int64_t row = begin; row < end; ++row) {
                E4m3* elements = to.elements.data() + row * to.padded_k() + block * Recipe::kBlock;
                quantise_elements<Recipe>(block_of<Recipe>(v, row, block), scale, elements);
            }
        }
    }
    return to;
}

}  // namespace

template <class Recipe>
Quantised<Recipe> quantise_rows(const Bf16Matrix& from) {
    return quantise<Recipe>(view_by_rows(from), 1);
}

template <class Recipe>
Quantised<Recipe> quantise_columns(const Bf16Matrix& from) {
    return quantise<Recipe>(view_by_columns(from), 1);
}

template <class Recipe>
QuantisedWeight<Recipe> quantise_weights(const Bf16Matrix& from) {
    return {quantise<Recipe>(view_by_rows(from), Recipe::kWeightRows),
            quantise<Recipe>(view_by_columns(from), Recipe::kWeightRows)};
}

template Quantised<Fp8Block> quantise_rows<Fp8Block>(const Bf16Matrix&);
template Quantised<Mxfp8> quantise_rows<Mxfp8>(const Bf16Matrix&);
template Quantised<Fp8Block> quantise_columns<Fp8Block>(const Bf16Matrix&);
template Quantised<Mxfp8> quantise_columns<Mxfp8>(const Bf16Matrix&);
template QuantisedWeight<Fp8Block> quantise_weights<Fp8Block>(const Bf16Matrix&);
template QuantisedWeight<Mxfp8> quantise_weights<Mxfp8>(const Bf16Matrix&);

}  // namespace mok::cpu
