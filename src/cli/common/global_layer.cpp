#include "cli/common/global_layer.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "cli/common/device_tensors.h"
#include "cli/common/gather.h"
#include "cli/common/rank_threads.h"

namespace mok::cli {
namespace {

// Rows [first, first + num) of a tensor along its first dimension; absent stays absent.
template <class Void>
BasicTensor<Void> rows_of(const BasicTensor<Void>& t, int64_t first, int64_t num) {
    if (!t.present()) return t;
    BasicTensor<Void> part = t;
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    part.data = static_cast<Byte*>(t.data) + first * t.stride[0] * dtype_bytes(t.dtype);
    part.shape[0] = num;
    return part;
}

Weights local_weights(const Weights& all, int64_t first, int64_t num) {
    Weights w = all;
    for (ConstTensor Weights::*t : {&Weights::gate, &Weights::up, &Weights::down,
                                    &Weights::gate_bias, &Weights::up_bias, &Weights::down_bias}) {
        w.*t = rows_of(all.*t, first, num);
    }
    return w;
}

// Makes room for a gradient of a tensor's shape where the tensor is there.
Tensor gradient_of(const ConstTensor& t, std::vector<float>& storage) {
    if (!t.present()) return {};
    int64_t elements = 1;
    for (int i = 0; i < t.dims; ++i) elements *= t.shape[i];
    storage.assign(elements, 0.0f);
    Tensor grad;
    grad.data = storage.data();
    grad.dtype = DType::F32;
    grad.dims = t.dims;
    grad.shape = t.shape;
    int64_t step = 1;
    for (int i = t.dims - 1; i >= 0; --i) {
        grad.stride[i] = step;
        step *= t.shape[i];
    }
    return grad;
}

WeightGrads all_gradients(const Weights& w, GlobalResult& r) {
    WeightGrads g;
    g.gate = gradient_of(w.gate, r.d_gate);
    g.up = gradient_of(w.up, r.d_up);
    g.down = gradient_of(w.down, r.d_down);
    g.gate_bias = gradient_of(w.gate_bias, r.d_gate_bias);
    g.up_bias = gradient_of(w.up_bias, r.d_up_bias);
    g.down_bias = gradient_of(w.down_bias, r.d_down_bias);
    g.shared_gate = gradient_of(w.shared_gate, r.d_shared_gate);
    g.shared_up = gradient_of(w.shared_up, r.d_shared_up);
    g.shared_down = gradient_of(w.shared_down, r.d_shared_down);
    return g;
}

WeightGrads routed_gradients(const WeightGrads& all, int64_t first, int64_t num) {
    WeightGrads g;
    for (Tensor WeightGrads::*t :
         {&WeightGrads::gate, &WeightGrads::up, &WeightGrads::down, &WeightGrads::gate_bias,
          &WeightGrads::up_bias, &WeightGrads::down_bias}) {
        g.*t = rows_of(all.*t, first, num);
    }
    return g;
}

Diagnostics diagnostics_of(const GlobalOptions& options, int rank) {
    Diagnostics d;
    if (!options.diagnostics.empty()) d = options.diagnostics[rank];
    d.counts_link_bytes = true;
    return d;
}

// What one rank holds from its forward to the shared expert's gradients.
struct RankCall {
    Device device;
    std::optional<DeviceTensors> tensors;
    std::optional<Workspace> workspace;
    std::optional<Schedule> schedule;
    Context context;
    Inputs inputs;
    ConstTensor grad_output;
};

bool is_in_processes(const GlobalOptions& options) {
    return options.processes && options.processes->size() == options.num_ranks;
}

// The ranks of this process.
std::vector<Group> own_ranks(const GlobalOptions& options) {
    if (is_in_processes(options)) return {*options.processes};
    return make_groups(options.device, options.num_ranks, options.group);
}

// One rank after the other adds to what the ones before have left.
void chain_shared_gradients(const GlobalOptions& options, const WeightGrads& grads,
                            std::vector<RankCall>& calls, GlobalResult& result) {
    WeightGrads chain;
    chain.shared_gate = grads.shared_gate;
    chain.shared_up = grads.shared_up;
    chain.shared_down = grads.shared_down;
    chain.shared_mode = GradMode::Chain;
    for (int r = 0; r < options.num_ranks; ++r) {
        RankCall& call = calls[r];
        if (call.workspace) {
            DeviceTensors sums(call.device);
            shared_wgrad(*call.workspace, *call.schedule, call.inputs, call.grad_output,
                         call.context, sums.output(chain));
            synchronize(*call.workspace);
            sums.fetch();
        }
        if (is_in_processes(options)) pass_on_shared_gradients(*options.processes, r, result);
    }
}

// Peers may still be reading this rank's ids when its schedule is made, so all ranks meet first.
void maybe_poison(const GlobalOptions& options, const Group& group, Workspace& workspace) {
    if (!options.poison) return;
    synchronize(workspace);
    meet(group, "barrier before poisoning");
    poison(workspace);
}

}  // namespace

std::vector<int64_t> split_tokens(int64_t num_tokens, const GlobalOptions& options) {
    const int ranks = options.num_ranks;
    if (options.tokens_per_rank.empty()) {
        std::vector<int64_t> even(ranks, num_tokens / ranks);
        for (int64_t r = 0; r < num_tokens % ranks; ++r) ++even[r];
        return even;
    }
    const std::vector<int64_t>& given = options.tokens_per_rank;
    if (static_cast<int>(given.size()) != ranks) {
        throw ShapeError("tokens_per_rank: expected " + std::to_string(ranks) +
                         " entries, one a rank, found " + std::to_string(given.size()));
    }
    for (const int64_t tokens : given) {
        if (tokens < 0 || tokens > num_tokens) {
            throw ShapeError("tokens_per_rank: expected entries from 0 to " +
                             std::to_string(num_tokens) + ", found " + std::to_string(tokens));
        }
    }
    const int64_t sum = std::accumulate(given.begin(), given.end(), int64_t{0});
    if (sum != num_tokens) {
        throw ShapeError("tokens_per_rank: expected a sum of " + std::to_string(num_tokens) +
                         " tokens, found " + std::to_string(sum));
    }
    return given;
}

GlobalResult run_global(const LayerShape& shape, const GlobalInputs& in,
                        const GlobalOptions& options) {
    const int64_t num_tokens = in.x.shape[0], hidden = shape.hidden, top_k = shape.top_k;
    const std::vector<Group> groups = own_ranks(options);
    const std::vector<int64_t> tokens = split_tokens(num_tokens, options);
    const bool backward_too = in.grad_output.present();
    const bool has_shared = shape.shared_intermediate > 0;

    GlobalResult result;
    result.output.resize(num_tokens * hidden);
    result.tokens_per_expert.resize(shape.num_experts);
    result.links.resize(options.num_ranks);
    WeightGrads grads;
    if (backward_too) {
        result.d_x.resize(num_tokens * hidden);
        result.d_topk_weights.resize(num_tokens * top_k);
        if (has_shared) result.d_shared_weights.resize(num_tokens);
        grads = all_gradients(in.weights, result);
    }

    std::vector<RankCall> calls(options.num_ranks);  // of this process's ranks, others are empty
    run_ranks(groups, [&](const Group& group) {
        const int r = group.rank();
        RankCall& call = calls[r];
        const int64_t first = std::accumulate(tokens.begin(), tokens.begin() + r, int64_t{0});
        const int64_t count = tokens[r];
        call.device = group.device();
        call.workspace.emplace(group, shape, options.tuning,
                               *std::max_element(tokens.begin(), tokens.end()));
        Workspace& workspace = *call.workspace;
        DeviceTensors& tensors = call.tensors.emplace(group.device());
        set_diagnostics(workspace, diagnostics_of(options, r));
        maybe_poison(options, group, workspace);
        call.schedule.emplace(workspace, tensors.input(rows_of(in.topk_ids, first, count)));
        const Schedule& schedule = *call.schedule;
        call.inputs = tensors.input(Inputs{rows_of(in.x, first, count),
                                           rows_of(in.topk_weights, first, count),
                                           rows_of(in.shared_weights, first, count)});
        const int64_t expert = workspace.first_expert(), experts = workspace.num_local_experts();
        Weights weights = tensors.input(local_weights(in.weights, expert, experts));
        std::optional<Fp8Weights> fp8;
        if (shape.precision != Precision::BF16) {
            quantize_weights(workspace, weights, fp8.emplace(workspace));
            weights.fp8 = &*fp8;
        }
        std::copy_n(schedule.tokens_per_expert().begin(), experts,
                    result.tokens_per_expert.begin() + expert);

        const Tensor out =
            tensors.output({result.output.data() + first * hidden, DType::BF16, {count, hidden}});
        maybe_poison(options, group, workspace);
        if (!backward_too) {
            forward(workspace, schedule, weights, call.inputs, out);
        } else {
            forward(workspace, schedule, weights, call.inputs, out, call.context);
            maybe_poison(options, group, workspace);
            if (options.recompute) {
                call.context = Context();
                recompute(workspace, schedule, weights, call.inputs, call.context);
                maybe_poison(options, group, workspace);
            }
            call.grad_output = tensors.input(rows_of(in.grad_output, first, count));
            InputGrads d;
            d.x =
                tensors.output({result.d_x.data() + first * hidden, DType::BF16, {count, hidden}});
            d.topk_weights = tensors.output(
                {result.d_topk_weights.data() + first * top_k, DType::F32, {count, top_k}});
            if (has_shared) {
                d.shared_weights =
                    tensors.output({result.d_shared_weights.data() + first, DType::F32, {count}});
            }
            const WeightGrads local = tensors.output(routed_gradients(grads, expert, experts));
            // The shared expert's gradients are chained over the ranks below, which needs the
            // split.
            if (options.split_backward || has_shared) {
                backward_input(workspace, schedule, weights, call.inputs, call.grad_output,
                               call.context, d);
                maybe_poison(options, group, workspace);
                wgrad(workspace, schedule, weights, call.inputs, call.grad_output, call.context,
                      local);
            } else {
                backward(workspace, schedule, weights, call.inputs, call.grad_output, call.context,
                         d, local);
            }
        }
        synchronize(workspace);
        tensors.fetch();
        result.links[r] = link_bytes(workspace);
    });

    if (backward_too && has_shared) chain_shared_gradients(options, grads, calls, result);
    for (const RankCall& call : calls) {
        if (!call.workspace) continue;
        result.workspace_bytes += call.workspace->bytes();
        result.context_bytes += call.context.bytes();
    }
    if (is_in_processes(options)) gather_result(*options.processes, shape, tokens, result);
    return result;
}

}  // namespace mok::cli
