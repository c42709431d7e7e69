#include "cpu/block_product.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include "cpu/block.h"

namespace mok::cpu {

namespace {

// What enters the product of a chunk, and what a chunk's sum becomes in c.
float operand(const Quantised<Fp8Block>& q, int64_t row, int64_t k) {
    return to_f32(q.element_at(row, k));
}
float operand(const Quantised<Mxfp8>& q, int64_t row, int64_t k) {
    return Mxfp8::dequantise_f32(q.element_at(row, k), q.scale_at(row, k / Mxfp8::kBlock));
}

struct Place {
    int64_t token, feature, chunk;
};
float promoted(float c, float partial, const Place& at, const Quantised<Fp8Block>& tokens,
               const Quantised<Fp8Block>& features) {
    const float scale =
        tokens.scale_at(at.token, at.chunk) * features.scale_at(at.feature, at.chunk);
    return std::fma(partial, scale, c);
}
float promoted(float c, float partial, const Place&, const Quantised<Mxfp8>&,
               const Quantised<Mxfp8>&) {
    return c + partial;
}

// 128 rows from `row` by 128 of K from `k`, zero where the operand ends.
template <class Recipe>
void load(Block& out, const Quantised<Recipe>& q, int64_t row, int64_t k) {
    std::fill_n(out.at, kBlock * kBlock, 0.0f);
    const int64_t num_rows = std::min(kBlock, q.outer - row);
    const int64_t width = std::min(kBlock, q.k - k);
    for (int64_t r = 0; r < num_rows; ++r) {
        for (int64_t i = 0; i < width; ++i) out.at[r * kBlock + i] = operand(q, row + r, k + i);
    }
}

}  // namespace

template <class Recipe>
void multiply_blocks(float* c, const Quantised<Recipe>& tokens, const Quantised<Recipe>& features) {
    if (tokens.k != features.k) {
        throw std::invalid_argument("multiply_blocks: expected operands of the same k, found " +
                                    std::to_string(tokens.k) + " and " +
                                    std::to_string(features.k));
    }
    const auto a = std::make_unique<Block>(), b = std::make_unique<Block>();
    const auto partial = std::make_unique<Block>();
    for (int64_t token = 0; token < tokens.outer; token += kBlock) {
        const int64_t num_tokens = std::min(kBlock, tokens.outer - token);
        for (int64_t feature = 0; feature < features.outer; feature += kBlock) {
            const int64_t num_features = std::min(kBlock, features.outer - feature);
            for (int64_t chunk = 0; chunk * kBlock < tokens.k; ++chunk) {
                load(*a, features, feature, chunk * kBlock);
                load(*b, tokens, token, chunk * kBlock);
                std::fill_n(partial->at, kBlock * kBlock, 0.0f);
                multiply_rows(*partial, *a, Layout::KInner, *b, Layout::KInner, num_tokens);
                for (int64_t t = 0; t < num_tokens; ++t) {
                    for (int64_t f = 0; f < num_features; ++f) {
                        float& to = c[(token + t) * features.outer + feature + f];
                        to = promoted(to, partial->at[t * kBlock + f],
                                      {token + t, feature + f, chunk}, tokens, features);
                    }
                }
            }
        }
    }
}

template void multiply_blocks(float*, const Quantised<Fp8Block>&, const Quantised<Fp8Block>&);
template void multiply_blocks(float*, const Quantised<Mxfp8>&, const Quantised<Mxfp8>&);

}  // namespace mok::cpu
