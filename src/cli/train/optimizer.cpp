#include "cli/train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "cli/train/adamw.h"
#include "cli/train/embedding.h"

namespace mok::train {
namespace {

constexpr int64_t kBlockElements = 16384;
constexpr int64_t kColumns = 16;  // of the embedding, taken at a time: 64 bytes

}  // namespace

Optimizer::Optimizer(const Config& config, Parameters& parameters, const Batch& batch)
    : config_(config), parameters_(parameters), batch_(batch) {
    cut_blocks();
    squares_.resize(blocks_.size());
}

void Optimizer::cut_blocks() {
    for (int w = 0; w < kNumWeights; ++w) {
        const WeightInfo& info = parameters_.infos()[w];
        const int64_t end = info.offset + info.size;
        for (int64_t begin = info.offset; begin < end; begin += kBlockElements) {
            blocks_.push_back(
                {static_cast<Weight>(w), begin, std::min(end, begin + kBlockElements)});
        }
    }
}

double Optimizer::update(const Exchange& exchange, int64_t step) {
    const Exchange::Duty duty = exchange.duty();
    // 1. gradients of the weights that every rank holds, in the global order of sequences, tokens
    gather_gradients(duty);
    exchange.meet("barrier after the gathered gradients");
    // 2. their norm with the experts' gradients
    for (size_t b = duty.index; b < blocks_.size(); b += duty.count) {
        const Block& block = blocks_[b];
        squares_[b] =
            sum_of_squares(parameters_.gradients.data() + block.begin, block.end - block.begin);
    }
    exchange.meet("barrier after the norm of the gradients");
    const double norm = gradient_norm();
    // 3. the weights
    const double scale = clip_scale(norm, config_.max_grad_norm);
    for (size_t b = duty.index; b < blocks_.size(); b += duty.count)
        step_block(blocks_[b], step, scale);
    exchange.meet("barrier after the new weights");
    return norm;
}

void Optimizer::gather_gradients(Exchange::Duty duty) {
    for (size_t b = duty.index; b < blocks_.size(); b += duty.count) {
        if (blocks_[b].weight < Weight::Embedding) add_sequences(blocks_[b]);
    }
    const EmbeddingGrad grad{batch_.rows.data(), batch_.d_y.data(), config_.tokens_per_step(),
                             parameters_.gradient(Weight::Embedding)};
    for (int64_t column = duty.index * kColumns; column < config_.hidden;
         column += duty.count * kColumns) {
        embed_backward(config_, grad, column, std::min(config_.hidden, column + kColumns));
    }
}

void Optimizer::add_sequences(const Block& block) {
    float* sum = parameters_.gradients.data();
    for (int64_t s = 0; s < config_.num_sequences; ++s) {
        const float* part = batch_.dense_gradients.data() + s * batch_.dense_stride;
        for (int64_t i = block.begin; i < block.end; ++i) {
            sum[i] = s == 0 ? part[i] : sum[i] + part[i];
        }
    }
}

double Optimizer::gradient_norm() const {
    double sum = 0.0;
    for (const double square : squares_) sum += square;
    return std::sqrt(sum);
}

void Optimizer::step_block(const Block& block, int64_t step, double gradient_scale) {
    const double rate =
        scheduled_rate(step, config_.steps, config_.warmup_steps, config_.learning_rate);
    const bool decays = parameters_.info(block.weight).decays;
    const AdamWState state{parameters_.values.data() + block.begin,
                           parameters_.gradients.data() + block.begin,
                           parameters_.first_moments.data() + block.begin,
                           parameters_.second_moments.data() + block.begin};
    adamw(adamw_step(step, rate, gradient_scale),
          decays ? static_cast<float>(config_.weight_decay) : 0.0f, state, block.end - block.begin);
    if (block.weight >= Weight::Gate) parameters_.round(block.begin, block.end);
}

}  // namespace mok::train
