#include "cli/train/parameters.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "cli/common/random.h"
#include "cli/io/sha256.h"
#include "cli/train/embedding.h"

namespace mok::train {
namespace {

constexpr int64_t kAlignment = 16;  // elements
constexpr double kEmbeddingScale = 0.02;

int64_t padded(int64_t size) {
    return (size + kAlignment - 1) / kAlignment * kAlignment;
}

double inverse_root(int64_t fan_in) {
    return 1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(fan_in, 1)));
}

std::array<WeightInfo, kNumWeights> list_weights(const Config& c) {
    const int64_t h = c.hidden, i = c.intermediate, e = c.num_experts, s = c.shared_intermediate;
    const double by_h = inverse_root(h);
    return {{
        {"moe_norm.weight", {h}, 0, 0, false, 0.0},
        {"router.weight", {e, h}, 0, 0, true, 0.1 * by_h},
        {"head_norm.weight", {h}, 0, 0, false, 0.0},
        {"head.weight", {256, h}, 0, 0, true, by_h},
        {"embedding.weight", {embedding_rows(c), h}, 0, 0, false, kEmbeddingScale},
        {"experts.gate_proj", {e, i, h}, 0, 0, true, by_h},
        {"experts.up_proj", {e, i, h}, 0, 0, true, by_h},
        {"experts.down_proj", {e, h, i}, 0, 0, true, inverse_root(i)},
        {"shared.gate_proj", {s, h}, 0, 0, true, by_h},
        {"shared.up_proj", {s, h}, 0, 0, true, by_h},
        {"shared.down_proj", {h, s}, 0, 0, true, inverse_root(s)},
    }};
}

}  // namespace

std::array<WeightInfo, kNumWeights> placed_weights(const Config& config) {
    std::array<WeightInfo, kNumWeights> infos = list_weights(config);
    int64_t end = 0;
    for (WeightInfo& info : infos) {
        info.offset = end;
        info.size = 1;
        for (const int64_t size : info.shape) info.size *= size;
        end += padded(info.size);
    }
    return infos;
}

Parameters::Parameters(const Config& config) : infos_(placed_weights(config)) {
    const int64_t end = infos_.back().offset + padded(infos_.back().size);
    values.resize(end);
    gradients.resize(end);
    first_moments.resize(end);
    second_moments.resize(end);
    bf16.resize(end);
    draw(config.seed);
    round(0, end);
}

void Parameters::draw(uint64_t seed) {
    for (int w = 0; w < kNumWeights; ++w) {
        const WeightInfo& info = infos_[w];
        cli::Random random(cli::random_at(seed, 0, w));
        for (int64_t i = info.offset; i < info.offset + info.size; ++i) {
            values[i] = info.init_scale == 0.0
                            ? 1.0f
                            : static_cast<float>(random.first_normal() * info.init_scale);
        }
    }
}

int64_t Parameters::count() const {
    int64_t total = 0;
    for (const WeightInfo& info : infos_) total += info.size;
    return total;
}

void Parameters::round(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) bf16[i] = to_bf16(values[i]);
}

void Parameters::clear_gradients(Weight first, Weight last) {
    std::fill(gradients.begin() + info(first).offset,
              gradients.begin() + info(last).offset + info(last).size, 0.0f);
}

std::string Parameters::hash() const {
    std::vector<const WeightInfo*> by_name;
    for (const WeightInfo& info : infos_) by_name.push_back(&info);
    std::sort(by_name.begin(), by_name.end(),
              [](const WeightInfo* a, const WeightInfo* b) { return a->name < b->name; });
    io::Sha256 sha;
    for (const WeightInfo* info : by_name) {
        sha.update(std::as_bytes(
            std::span(values.data() + info->offset, static_cast<size_t>(info->size))));
    }
    return sha.finish_hex();
}

}  // namespace mok::train
