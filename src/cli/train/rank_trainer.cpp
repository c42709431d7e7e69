#include "cli/train/rank_trainer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "cli/common/device_tensors.h"
#include "cli/common/gather.h"

namespace mok::train {
namespace {

Tuning tuning_of(int max_workers) {
    Tuning tuning;
    tuning.max_workers = max_workers;
    return tuning;
}

int64_t max_sequences(const Config& config, int num_ranks) {
    return (config.num_sequences + num_ranks - 1) / num_ranks;
}

}  // namespace

RankTrainer::RankTrainer(Model& model, const Group& group, Copies copies, int max_workers)
    : config_(model.config),
      model_(model),
      group_(group),
      exchange_(group, copies),
      rank_(group.rank()),
      workspace_(group, model.config.layer_shape(), tuning_of(max_workers),
                 max_sequences(model.config, group.size()) * model.config.sequence_length),
      pass_(model.config, model.parameters, model.batch),
      masked_ids_(max_sequences(config_, group.size()) * config_.sequence_length * config_.top_k,
                  -1) {
    if (config_.precision != Precision::BF16) fp8_weights_.emplace(workspace_);
}

double RankTrainer::step(int64_t step) {
    Batch& batch = model_.batch;
    const Share share = share_of(config_.num_sequences);

    // 1. this rank's sequences up to the layer
    for (int64_t s = share.first; s < share.end; ++s) {
        const int64_t start = model_.text.draw_start(config_.seed, step, s);
        pass_.before_layer(s, model_.text.sequence(start));
    }
    exchange_.gather("barrier before the balance loss", sequences_of_ranks(config_.num_sequences),
                     {bytes_of(batch.expert_count), bytes_of(batch.prob_sum)});

    // 2. the load-balance loss of the global batch, the same on every rank
    const RouterShape router{config_.sequence_length, config_.num_experts, config_.top_k};
    const Balance balance = load_balance(
        router, {batch.expert_count, batch.prob_sum, config_.tokens_per_step()}, config_.balance);

    // 3. the mixture-of-experts layer
    cli::DeviceTensors tensors(group_.device());
    const Schedule schedule(workspace_, tensors.input(topk_ids(share, Routed::On)));
    const LayerCall call{schedule, tensors.input(weights()), tensors.input(inputs(share))};
    Context context;
    forward(workspace_, schedule, call.weights, call.inputs, tensors.output(layer_output(share)),
            context);
    synchronize(workspace_);
    tensors.fetch();

    // 4. head and loss, and back to the layer
    const float scale = 1.0f / static_cast<float>(config_.tokens_per_step());
    for (int64_t s = share.first; s < share.end; ++s) pass_.after_layer_with_backward(s, scale);
    layer_backward(share, call, context);

    // 5. router and embedding
    for (int64_t s = share.first; s < share.end; ++s) pass_.before_layer_backward(s, balance);
    gather_gradients();

    // 6. the weights
    model_.optimizer.update(exchange_, step);
    if (fp8_weights_) fp8_weights_->invalidate();
    return batch_bits(config_.num_sequences);
}

void RankTrainer::evaluate(std::span<const int64_t> starts, Routed routed, Evaluation& result) {
    const int64_t total = static_cast<int64_t>(starts.size());
    const int64_t first_expert = workspace_.first_expert();
    const bool owns_result = exchange_.duty().index == 0;
    if (owns_result) result.tokens_per_expert.assign(config_.num_experts, 0);
    double bits = 0.0;
    for (int64_t done = 0; done < total; done += config_.num_sequences) {
        const int64_t count = std::min(config_.num_sequences, total - done);
        const Share share = share_of(count);
        for (int64_t s = share.first; s < share.end; ++s) {
            pass_.before_layer(s, model_.text.sequence(starts[done + s]));
        }
        exchange_.meet("barrier before an evaluated layer");
        cli::DeviceTensors tensors(group_.device());
        const Schedule schedule(workspace_, tensors.input(topk_ids(share, routed)));
        forward(workspace_, schedule, tensors.input(weights()), tensors.input(inputs(share)),
                tensors.output(layer_output(share)));
        synchronize(workspace_);
        tensors.fetch();
        for (size_t e = 0; e < schedule.tokens_per_expert().size(); ++e) {
            result.tokens_per_expert[first_expert + e] += schedule.tokens_per_expert()[e];
        }
        for (int64_t s = share.first; s < share.end; ++s) pass_.after_layer(s);
        exchange_.gather("barrier after an evaluated batch", sequences_of_ranks(count),
                         {bytes_of(model_.batch.loss.data(), count)});
        bits += batch_bits(count) * static_cast<double>(count);
    }
    if (owns_result) result.bits_per_byte = bits / static_cast<double>(total);
    exchange_.gather("barrier after an evaluation",
                     cli::experts_per_rank(static_cast<int>(config_.num_experts), group_.size()),
                     {bytes_of(result.tokens_per_expert)});
}

std::vector<int64_t> RankTrainer::sequences_of_ranks(int64_t num_sequences) const {
    return even_split(num_sequences, group_.size());
}

RankTrainer::Share RankTrainer::share_of(int64_t num_sequences) const {
    const std::vector<int64_t> all = sequences_of_ranks(num_sequences);
    const int64_t first = std::accumulate(all.begin(), all.begin() + rank_, int64_t{0});
    return {first, first + all[rank_]};
}

Inputs RankTrainer::inputs(Share share) const {
    const int64_t first = share.first * config_.sequence_length;
    const int64_t tokens = (share.end - share.first) * config_.sequence_length;
    Inputs inputs;
    inputs.x = Tensor(model_.batch.x_norm.data() + first * config_.hidden, DType::F32,
                      {tokens, config_.hidden});
    inputs.topk_weights = Tensor(model_.batch.router_weights.data() + first * config_.top_k,
                                 DType::F32, {tokens, config_.top_k});
    return inputs;
}

Weights RankTrainer::weights() {
    const int64_t h = config_.hidden, i = config_.intermediate, s = config_.shared_intermediate;
    const int64_t experts = workspace_.num_local_experts();
    const int64_t skip = workspace_.first_expert() * i * h;
    const Parameters& p = model_.parameters;
    Weights weights;
    weights.gate = ConstTensor(p.rounded(Weight::Gate) + skip, DType::BF16, {experts, i, h});
    weights.up = ConstTensor(p.rounded(Weight::Up) + skip, DType::BF16, {experts, i, h});
    weights.down = ConstTensor(p.rounded(Weight::Down) + skip, DType::BF16, {experts, h, i});
    if (s > 0) {
        weights.shared_gate = ConstTensor(p.rounded(Weight::SharedGate), DType::BF16, {s, h});
        weights.shared_up = ConstTensor(p.rounded(Weight::SharedUp), DType::BF16, {s, h});
        weights.shared_down = ConstTensor(p.rounded(Weight::SharedDown), DType::BF16, {h, s});
    }
    if (fp8_weights_) {
        if (!fp8_weights_->is_filled()) quantize_weights(workspace_, weights, *fp8_weights_);
        weights.fp8 = &*fp8_weights_;
    }
    return weights;
}

ConstTensor RankTrainer::topk_ids(Share share, Routed routed) const {
    const int64_t first = share.first * config_.sequence_length;
    const int64_t tokens = (share.end - share.first) * config_.sequence_length;
    const int32_t* ids =
        routed == Routed::On ? model_.batch.ids.data() + first * config_.top_k : masked_ids_.data();
    return ConstTensor(ids, DType::I32, {tokens, config_.top_k});
}

Tensor RankTrainer::layer_output(Share share) {
    const int64_t first = share.first * config_.sequence_length;
    const int64_t tokens = (share.end - share.first) * config_.sequence_length;
    return Tensor(model_.batch.y.data() + first * config_.hidden, DType::F32,
                  {tokens, config_.hidden});
}

// The experts' gradients go straight into the optimizer's buffer: each rank owns its experts'. The
// shared expert's are one sum over all tokens, which goes on from rank to rank.
void RankTrainer::layer_backward(Share share, const LayerCall& call, Context& context) {
    const int64_t h = config_.hidden, i = config_.intermediate, s = config_.shared_intermediate;
    const int64_t first = share.first * config_.sequence_length;
    const int64_t tokens = (share.end - share.first) * config_.sequence_length;
    const int64_t experts = workspace_.num_local_experts();
    const int64_t skip = workspace_.first_expert() * i * h;
    Batch& batch = model_.batch;
    Parameters& p = model_.parameters;

    cli::DeviceTensors device(group_.device());
    const ConstTensor d_out =
        device.input(ConstTensor(batch.d_y.data() + first * h, DType::F32, {tokens, h}));
    InputGrads input_grads;
    input_grads.x = Tensor(batch.d_x_norm.data() + first * h, DType::F32, {tokens, h});
    input_grads.topk_weights = Tensor(batch.d_router_weights.data() + first * config_.top_k,
                                      DType::F32, {tokens, config_.top_k});
    WeightGrads grads;
    grads.gate = Tensor(p.gradient(Weight::Gate) + skip, DType::F32, {experts, i, h});
    grads.up = Tensor(p.gradient(Weight::Up) + skip, DType::F32, {experts, i, h});
    grads.down = Tensor(p.gradient(Weight::Down) + skip, DType::F32, {experts, h, i});
    const InputGrads device_input_grads = device.output(input_grads);
    const WeightGrads device_grads = device.output(grads);
    if (s == 0) {
        backward(workspace_, call.schedule, call.weights, call.inputs, d_out, context,
                 device_input_grads, device_grads);
    } else {
        backward_input(workspace_, call.schedule, call.weights, call.inputs, d_out, context,
                       device_input_grads);
        wgrad(workspace_, call.schedule, call.weights, call.inputs, d_out, context, device_grads);
    }
    synchronize(workspace_);
    device.fetch();
    if (s == 0) return;

    WeightGrads shared;
    shared.shared_gate = Tensor(p.gradient(Weight::SharedGate), DType::F32, {s, h});
    shared.shared_up = Tensor(p.gradient(Weight::SharedUp), DType::F32, {s, h});
    shared.shared_down = Tensor(p.gradient(Weight::SharedDown), DType::F32, {h, s});
    shared.shared_mode = GradMode::Chain;
    if (rank_ == 0) p.clear_gradients(Weight::SharedGate, Weight::SharedDown);
    for (int turn = 0; turn < group_.size(); ++turn) {
        if (turn == rank_) {
            cli::DeviceTensors sums(group_.device());
            shared_wgrad(workspace_, call.schedule, call.inputs, d_out, context,
                         sums.output(shared));
            synchronize(workspace_);
            sums.fetch();
        }
        exchange_.pass_on("barrier between turns of the shared expert", turn,
                          {bytes_of(p.gradient(Weight::SharedGate), s * h),
                           bytes_of(p.gradient(Weight::SharedUp), s * h),
                           bytes_of(p.gradient(Weight::SharedDown), h * s)});
    }
}

void RankTrainer::gather_gradients() {
    const int64_t numbers = config_.num_experts * config_.intermediate * config_.hidden;
    Batch& batch = model_.batch;
    Parameters& p = model_.parameters;
    const char* const what = "barrier before the optimizer";
    exchange_.gather(what, sequences_of_ranks(config_.num_sequences),
                     {bytes_of(batch.loss), bytes_of(batch.dense_gradients), bytes_of(batch.rows),
                      bytes_of(batch.d_y)});
    exchange_.gather(
        what, cli::experts_per_rank(static_cast<int>(config_.num_experts), group_.size()),
        {bytes_of(p.gradient(Weight::Gate), numbers), bytes_of(p.gradient(Weight::Up), numbers),
         bytes_of(p.gradient(Weight::Down), numbers)});
}

double RankTrainer::batch_bits(int64_t num_sequences) const {
    double nats = 0.0;
    for (int64_t s = 0; s < num_sequences; ++s) nats += model_.batch.loss[s];
    const double tokens = static_cast<double>(num_sequences * config_.sequence_length);
    return nats / tokens / std::numbers::ln2;
}

}  // namespace mok::train
