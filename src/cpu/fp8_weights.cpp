#include "cpu/fp8_weights.h"

#include <cstring>
#include <vector>

#include "cpu/block.h"
#include "cpu/quantise.h"

namespace mok::cpu {
namespace {

// Matrix `expert` of [E_l, rows, cols], rounded to BF16.
std::vector<Bf16> rounded_matrix(const ConstTensor& t, int64_t expert) {
    std::vector<Bf16> all(t.shape[1] * t.shape[2]);
    for (int64_t r = 0; r < t.shape[1]; ++r) {
        const int64_t from = expert * t.stride[0] + r * t.stride[1];
        for (int64_t c = 0; c < t.shape[2]; ++c) {
            all[r * t.shape[2] + c] = to_bf16(load_exact(t.data, t.dtype, from + c));
        }
    }
    return all;
}

template <class Recipe>
void place(const Quantised<Recipe>& from, const plan::Fp8MatrixMap& map, int64_t expert,
           std::byte* to) {
    std::byte* elements = to + map.elements + expert * map.expert_elements;
    std::memset(elements, 0, map.expert_elements);
    for (int64_t r = 0; r < from.outer; ++r) {
        std::memcpy(elements + r * map.padded_k, from.elements.data() + r * from.padded_k(),
                    from.padded_k());
    }
    std::memcpy(to + map.scales + expert * map.expert_scales, from.scales.data(),
                map.expert_scales);
}

template <class Recipe>
void quantise_matrix(const ConstTensor& t, const plan::Fp8MatrixMap& by_rows,
                     const plan::Fp8MatrixMap& by_columns, std::byte* to) {
    for (int64_t expert = 0; expert < t.shape[0]; ++expert) {
        const std::vector<Bf16> matrix = rounded_matrix(t, expert);
        const QuantisedWeight<Recipe> both =
            quantise_weights<Recipe>({matrix.data(), t.shape[1], t.shape[2], t.shape[2]});
        place(both.by_rows, by_rows, expert, to);
        place(both.by_columns, by_columns, expert, to);
    }
}

template <class Recipe>
void quantise_all(const plan::Fp8WeightsMap& map, const Weights& weights, std::byte* to) {
    quantise_matrix<Recipe>(weights.gate, map.gate, map.gate_t, to);
    quantise_matrix<Recipe>(weights.up, map.up, map.up_t, to);
    quantise_matrix<Recipe>(weights.down, map.down, map.down_t, to);
}

}  // namespace

void quantise_experts(const plan::Problem& p, const Weights& weights, std::byte* to) {
    if (plan::num_local_experts(p) == 0) return;
    const plan::Fp8WeightsMap map = plan::fp8_weights_map(p);
    if (p.precision == Precision::Fp8Block) return quantise_all<Fp8Block>(map, weights, to);
    quantise_all<Mxfp8>(map, weights, to);
}

}  // namespace mok::cpu
