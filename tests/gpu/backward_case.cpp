#include "backward_case.h"

#include <algorithm>
#include <cstring>

namespace mok_test {

using namespace mok;

namespace {

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
    to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

BackwardCase::BackwardCase(const cli::RandomCase& c, const BackwardOptions& options)
    : device(c, options.device), case_(c), options_(options) {
    const int64_t H = c.shape.hidden, S = c.shape.shared_intermediate;
    if (S > 0) {
        d_shared_gate_ = DeviceMemory(S * H * 4);
        d_shared_up_ = DeviceMemory(S * H * 4);
        d_shared_down_ = DeviceMemory(S * H * 4);
        for (DeviceMemory* m : {&d_shared_gate_, &d_shared_up_, &d_shared_down_}) {
            MOK_CUDA(cudaMemset(m->at<char>(), 0, m->bytes()));
        }
    }
    ranks.resize(device.ranks.size());
    for (size_t r = 0; r < ranks.size(); ++r) bind(static_cast<int>(r));
}

DeviceMemory BackwardCase::gradient(int64_t elements) const {
    DeviceMemory memory(elements * (options_.bf16_grads ? 2 : 4));
    if (options_.mode == GradMode::Overwrite) return memory;  // NaN
    if (options_.bf16_grads) {
        return DeviceMemory(std::vector<Bf16>(elements, to_bf16(options_.old_gradient)));
    }
    return DeviceMemory(std::vector<float>(elements, options_.old_gradient));
}

void BackwardCase::bind(int rank) {
    VirtualRank& v = device.ranks[rank];
    BackwardRank& b = ranks[rank];
    const plan::Problem& p = v.problem;
    const int64_t H = p.hidden, I = p.intermediate, S = p.shared_intermediate;
    const int64_t E = plan::num_local_experts(p), T = p.num_tokens, K = p.top_k;
    const plan::WindowMap& w = v.window_map;
    const plan::WorkspaceMap& m = v.map;
    const plan::ContextMap& c = v.context_map;
    int64_t first = 0;
    for (int r = 0; r < rank; ++r) first += device.ranks[r].problem.num_tokens;
    MOK_CUDA(cudaMemcpy(v.window.at<char>(w.d_y), case_.grad_output.data() + first * H, T * H * 2,
                        cudaMemcpyHostToDevice));
    b.gate = gradient(E * I * H);
    b.up = gradient(E * I * H);
    b.down = gradient(E * I * H);
    b.gate_bias = gradient(E * I);
    b.up_bias = gradient(E * I);
    b.down_bias = gradient(E * H);
    b.d_x = DeviceMemory(T * H * 4);
    b.d_topk_weights = DeviceMemory(T * K * 4);
    b.d_shared_weights = DeviceMemory(T * 4);
    b.control = DeviceMemory(256);

    kernels::BackwardParams& f = b.params;
    f = {};
    static_cast<kernels::PassParams&>(f) = v.params;
    f.pass.problem = p;  // with keep_x
    if (options_.device.tuning.minibatch_rows <= 0) {
        f.pass.problem.minibatch_rows =
            plan::backward_granularity(options_.device.max_sms, H, I).default_rows;
    }
    f.activation = v.params.activation;
    f.biases = v.params.biases;
    for (int h = 0; h < p.num_ranks; ++h) {
        const VirtualRank& peer = device.ranks[h];
        f.peer_x[h] = peer.window.at<Bf16>(peer.window_map.x);
        f.peer_d_y[h] = peer.window.at<Bf16>(peer.window_map.d_y);
        f.peer_topk_weights[h] = peer.window.at<float>(peer.window_map.topk_weights);
        f.peer_combine[h] = peer.window.at<Bf16>(peer.window_map.combine);
        f.peer_router_partials[h] = peer.window.at<float>(peer.window_map.router_partials);
    }
    const auto local = [&](int64_t at) { return v.local.at<Bf16>(at); };
    const auto kept = [&](int64_t at) { return v.context.at<Bf16>(at); };
    f.ring = {local(m.x), local(m.d_y), v.local.at<float>(m.row_weights)};
    f.kept = {kept(c.x), kept(c.d_y), v.context.at<float>(c.row_weights)};
    f.shared_d_y = f.peer_d_y[rank];
    f.has_shared_weights = !case_.shared_weights.empty();
    f.shared_weights = v.shared_weights.at<float>();
    f.shared_router_partials = v.local.at<float>(m.shared_router_partials);
    f.wgrad_scratch = v.local.at<float>(m.wgrad_scratch);
    const bool bf16 = options_.bf16_grads;
    const auto matrix = [&](const DeviceMemory& at, int64_t rows, int64_t cols) {
        return kernels::WeightGradient{true, bf16, at.at<void>(), rows * cols, cols};
    };
    const auto vector = [&](const DeviceMemory& at, bool there, int64_t rows) {
        return kernels::WeightGradient{there, bf16, at.at<void>(), rows, 1};
    };
    f.grads = {matrix(b.gate, I, H),
               matrix(b.up, I, H),
               matrix(b.down, H, I),
               vector(b.gate_bias, !case_.gate_bias.empty(), I),
               vector(b.up_bias, !case_.up_bias.empty(), I),
               vector(b.down_bias, !case_.down_bias.empty(), H),
               options_.mode};
    const auto shared_matrix = [&](const DeviceMemory& at, int64_t cols) {
        return kernels::WeightGradient{S > 0, false, at.at<void>(), 0, cols};
    };
    f.shared_grads = {shared_matrix(d_shared_gate_, H),
                      shared_matrix(d_shared_up_, H),
                      shared_matrix(d_shared_down_, S),
                      {},
                      {},
                      {},
                      GradMode::Chain};
    const int64_t ring_rows = plan::ring_rows(p);
    const int64_t kept_rows = (c.up - c.gate) / (2 * I) / 128 * 128;
    kernels::ExpertBuffers e{};
    e.count = E;
    e.hidden = H;
    e.width = I;
    e.ring = {local(m.x),      local(m.d_y),  local(m.gate), local(m.up), local(m.w_hidden),
              local(m.d_gate), local(m.d_up), ring_rows,     ring_rows};
    e.kept = {kept(c.x),      kept(c.d_y),  kept(c.gate), kept(c.up), kept(c.w_hidden),
              kept(c.d_gate), kept(c.d_up), kept_rows,    kept_rows};
    e.gate = {v.gate.at<Bf16>(), I * H, H};
    e.up = {v.up.at<Bf16>(), I * H, H};
    e.down = {v.down.at<Bf16>(), I * H, I};
    e.grads = &f.grads;
    b.routed = kernels::backward_maps(e);
    b.shared = b.routed;
    if (S > 0) {
        const int64_t rows = plan::shared_rows(p, T);
        const bool keeps = options_.split;
        const auto operand = [&](int64_t in_context, int64_t in_workspace) {
            return keeps ? kept(in_context) : local(in_workspace);
        };
        e.count = 1;
        e.width = S;
        e.ring = {f.peer_x[rank],
                  f.peer_d_y[rank],
                  kept(c.shared_gate),
                  kept(c.shared_up),
                  operand(c.shared_w_hidden, m.shared_w_hidden),
                  operand(c.shared_d_gate, m.shared_d_gate),
                  operand(c.shared_d_up, m.shared_d_up),
                  rows,
                  T};
        e.kept = {};
        e.out = local(m.shared_out);
        e.gate = {device.shared_gate.at<Bf16>(), S * H, H};
        e.up = {device.shared_up.at<Bf16>(), S * H, H};
        e.down = {device.shared_down.at<Bf16>(), S * H, S};
        e.grads = &f.shared_grads;
        b.shared = kernels::backward_maps(e);
    }
    kernels::ReduceGradsParams& g = b.reduce;
    g = {};
    g.num_tokens = p.num_tokens;
    g.hidden = p.hidden;
    g.top_k = p.top_k;
    g.ids = v.ids_device.at<int32_t>();
    g.combine = v.window.at<Bf16>(w.combine);
    g.has_shared = S > 0;
    g.shared_out = local(m.shared_out);
    g.wants_x = true;
    g.x_is_bf16 = !options_.f32_d_x;
    g.x = b.d_x.at<void>();
    g.x_stride = H;
    g.wants_topk_weights = true;
    g.num_partials = static_cast<int32_t>(plan::router_partials(p));
    g.router_partials = v.window.at<float>(w.router_partials);
    g.topk_weights = b.d_topk_weights.at<float>();
    g.topk_stride = K;
    g.wants_shared_weights = S > 0;
    g.shared_partials = plan::gate_up_parts(p, true) + 1;
    g.shared_router_partials = f.shared_router_partials;
    g.shared_weights = b.d_shared_weights.at<float>();
}

// x of the kept slots as a forward with keep_x leaves it: by slot, zeros in padding.
void BackwardCase::keep_x(int rank) {
    VirtualRank& v = device.ranks[rank];
    const plan::Problem& p = v.problem;
    std::vector<int32_t> block(plan::route_table_ints(p));
    MOK_CUDA(
        cudaMemcpy(block.data(), v.table.at<char>(), block.size() * 4, cudaMemcpyDeviceToHost));
    const plan::RouteTable t = plan::route_table_at(p, block.data());
    const int64_t rows = (v.context_map.up - v.context_map.gate) / (2 * p.intermediate) / 128 * 128;
    std::vector<int64_t> first(p.num_ranks + 1, 0);
    for (int r = 0; r < p.num_ranks; ++r) {
        first[r + 1] = first[r] + device.ranks[r].problem.num_tokens;
    }
    std::vector<Bf16> x(rows * p.hidden, Bf16{0});
    for (int64_t slot = 0; slot < rows; ++slot) {
        if (t.slot_home[slot] < 0) continue;
        const int64_t token = first[t.slot_home[slot]] + t.slot_route[slot] / p.top_k;
        std::copy_n(case_.x.data() + token * p.hidden, p.hidden, x.data() + slot * p.hidden);
    }
    MOK_CUDA(cudaMemcpy(v.context.at<char>(v.context_map.x), x.data(), x.size() * 2,
                        cudaMemcpyHostToDevice));
}

void BackwardCase::run() {
    const auto check = [&](const char* what) {
        const cudaError_t error = cudaDeviceSynchronize();
        if (error != cudaSuccess) {
            std::printf("%s: %s\n", what, cudaGetErrorString(error));
            std::exit(1);
        }
        if (device.fault().empty()) return;
        std::printf("FAULT in %s: %s\n", what, device.fault().c_str());
        std::exit(1);
    };
    device.run(nullptr);
    check("forward");
    for (size_t r = 0; r < ranks.size(); ++r) {
        VirtualRank& v = device.ranks[r];
        if (options_.recompute) {
            MOK_CUDA(cudaMemset(v.context.at<char>(), 0xff, v.context.bytes()));
            MOK_CUDA(cudaMemset(v.params.signals, 0, plan::num_signals(v.problem) * 4));
            MOK_CUDA(cudaMemset(v.control.at<char>(), 0, 256));
            kernels::ForwardParams again = v.params;
            again.pass.kind = plan::PassKind::Recompute;
            MOK_CUDA(kernels::launch_forward(again, v.routed, v.shared, options_.device.max_sms,
                                             nullptr));
        }
    }
    check("recompute");
    for (size_t r = 0; r < ranks.size(); ++r) {
        VirtualRank& v = device.ranks[r];
        if (v.problem.keep_x) keep_x(static_cast<int>(r));
        MOK_CUDA(cudaMemset(v.local.at<char>(), 0xff, v.local.bytes()));
        MOK_CUDA(cudaMemset(v.window.at<char>(v.window_map.combine), 0xff,
                            v.window_map.barrier_flags - v.window_map.combine));
    }
    if (!options_.split) {
        run_pass(plan::PassKind::Backward, nullptr);
        check("backward");
    } else {
        run_pass(plan::PassKind::BackwardInput, nullptr);
        check("backward_input");
        for (VirtualRank& v : device.ranks) {
            // The reduce below needs the shared expert's rows alone.
            MOK_CUDA(cudaMemset(v.local.at<char>(), 0xff, v.map.shared_out));
        }
        run_pass(plan::PassKind::Wgrad, nullptr);
        check("wgrad");
    }
    for (BackwardRank& b : ranks) MOK_CUDA(kernels::launch_reduce_grads(b.reduce, nullptr));
    check("reduce");
}

void BackwardCase::run_pass(plan::PassKind kind, cudaStream_t stream) {
    for (size_t r = 0; r < ranks.size(); ++r) {
        BackwardRank& b = ranks[r];
        MOK_CUDA(cudaMemsetAsync(b.params.signals, 0, plan::num_signals(b.params.pass.problem) * 4,
                                 stream));
        MOK_CUDA(cudaMemsetAsync(device.ranks[r].control.at<char>(), 0, 256, stream));
    }
    for (BackwardRank& b : ranks) {
        b.params.pass.kind = kind;
        MOK_CUDA(kernels::launch_backward(b.params, b.routed, b.shared, options_.device.max_sms,
                                          stream));
    }
}

void BackwardCase::run_backward(cudaStream_t stream) {
    run_pass(plan::PassKind::Backward, stream);
    for (BackwardRank& b : ranks) MOK_CUDA(kernels::launch_reduce_grads(b.reduce, stream));
}

std::vector<float> BackwardCase::floats(const DeviceMemory& memory, int64_t elements,
                                        bool bf16) const {
    std::vector<float> out(elements);
    if (!bf16) {
        MOK_CUDA(cudaMemcpy(out.data(), memory.at<char>(), elements * 4, cudaMemcpyDeviceToHost));
        return out;
    }
    std::vector<Bf16> half(elements);
    MOK_CUDA(cudaMemcpy(half.data(), memory.at<char>(), elements * 2, cudaMemcpyDeviceToHost));
    std::transform(half.begin(), half.end(), out.begin(), [](Bf16 v) { return to_f32(v); });
    return out;
}

cli::GlobalResult BackwardCase::result() const {
    cli::GlobalResult out;
    const int64_t H = case_.shape.hidden, I = case_.shape.intermediate;
    const int64_t S = case_.shape.shared_intermediate, K = case_.shape.top_k;
    out.output = device.output();
    const bool bf16 = options_.bf16_grads;
    for (size_t r = 0; r < ranks.size(); ++r) {
        const BackwardRank& b = ranks[r];
        const int64_t T = b.params.pass.problem.num_tokens;
        const int64_t E = plan::num_local_experts(b.params.pass.problem);
        const std::vector<float> d_x = floats(b.d_x, T * H, !options_.f32_d_x);
        for (const float v : d_x) out.d_x.push_back(to_bf16(v));
        append(out.d_topk_weights, floats(b.d_topk_weights, T * K, false));
        if (S > 0) append(out.d_shared_weights, floats(b.d_shared_weights, T, false));
        append(out.d_gate, floats(b.gate, E * I * H, bf16));
        append(out.d_up, floats(b.up, E * I * H, bf16));
        append(out.d_down, floats(b.down, E * I * H, bf16));
        if (!case_.gate_bias.empty()) append(out.d_gate_bias, floats(b.gate_bias, E * I, bf16));
        if (!case_.up_bias.empty()) append(out.d_up_bias, floats(b.up_bias, E * I, bf16));
        if (!case_.down_bias.empty()) append(out.d_down_bias, floats(b.down_bias, E * H, bf16));
    }
    if (S > 0) {
        out.d_shared_gate = floats(d_shared_gate_, S * H, false);
        out.d_shared_up = floats(d_shared_up_, S * H, false);
        out.d_shared_down = floats(d_shared_down_, S * H, false);
    }
    return out;
}

}  // namespace mok_test
