#include "cli/train/embedding.h"

#include <algorithm>

#include "cli/common/random.h"

namespace mok::train {
namespace {

constexpr int64_t kBytes = 256;

}  // namespace

int64_t num_features(const Config& config) {
    return config.window + config.ngram_order - 1;
}

int64_t embedding_rows(const Config& config) {
    return config.window * kBytes + (config.ngram_order - 1) * config.ngram_rows;
}

void find_rows(const Config& config, std::span<const uint8_t> bytes, int32_t* rows) {
    const int64_t first = config.context_bytes() - 1;
    for (int64_t t = 0; t < config.sequence_length; ++t) {
        const uint8_t* last = bytes.data() + first + t;
        for (int64_t j = 0; j < config.window; ++j) {
            *rows++ = static_cast<int32_t>(j * kBytes + last[-j]);
        }
        uint64_t packed = last[0];
        for (int64_t n = 2; n <= config.ngram_order; ++n) {
            packed = packed << 8 | last[1 - n];
            const int64_t table = config.window * kBytes + (n - 2) * config.ngram_rows;
            *rows++ = static_cast<int32_t>(
                table + static_cast<int64_t>(cli::mix_bits(packed) % config.ngram_rows));
        }
    }
}

void embed(const Config& config, const float* table, const int32_t* rows, float* x) {
    const int64_t features = num_features(config), width = config.hidden;
    for (int64_t t = 0; t < config.sequence_length; ++t, x += width, rows += features) {
        std::copy_n(table + rows[0] * width, width, x);
        for (int64_t f = 1; f < features; ++f) {
            const float* row = table + rows[f] * width;
            for (int64_t i = 0; i < width; ++i) x[i] += row[i];
        }
    }
}

void embed_backward(const Config& config, const EmbeddingGrad& grad, int64_t begin, int64_t end) {
    const int64_t features = num_features(config), width = config.hidden;
    for (int64_t row = 0; row < embedding_rows(config); ++row) {
        std::fill(grad.d_table + row * width + begin, grad.d_table + row * width + end, 0.0f);
    }
    for (int64_t t = 0; t < grad.num_tokens; ++t) {
        const float* d_x = grad.d_x + t * width;
        for (int64_t f = 0; f < features; ++f) {
            float* d_row = grad.d_table + grad.rows[t * features + f] * width;
            for (int64_t i = begin; i < end; ++i) d_row[i] += d_x[i];
        }
    }
}

}  // namespace mok::train
