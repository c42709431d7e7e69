#include "layer/cuda_bind.h"

namespace mok::layer {
namespace {

// The stride of a dimension with one entry is never used and may hold anything.
int64_t stride_of(const Tensor& t, int dimension, int64_t packed) {
    return t.shape[dimension] > 1 ? t.stride[dimension] : packed;
}

// Of [E_l, rows, cols] or, of a bias, [E_l, rows].
kernels::WeightGradient gradient_of(const Tensor& t) {
    kernels::WeightGradient g{};
    g.wanted = t.present();
    if (!g.wanted) return g;
    g.is_bf16 = t.dtype == DType::BF16;
    g.data = t.data;
    g.row_stride = t.dims == 3 ? stride_of(t, 1, t.shape[2]) : 1;
    g.expert_stride = stride_of(t, 0, t.shape[1] * g.row_stride);
    return g;
}

// Of the shared expert: [rows, cols].
kernels::WeightGradient shared_gradient_of(const Tensor& t) {
    kernels::WeightGradient g{};
    g.wanted = t.present();
    if (!g.wanted) return g;
    g.is_bf16 = t.dtype == DType::BF16;
    g.data = t.data;
    g.row_stride = stride_of(t, 0, t.shape[1]);
    return g;
}

// A weight that no task of the pass reads may be absent.
kernels::WeightMatrix weight_of(const arch::MatrixStack& s, int64_t rows, int64_t cols) {
    const Bf16* const data = static_cast<const Bf16*>(s.data);
    if (s.rows != rows || s.cols != cols) return {data, rows * cols, cols};
    return {data, s.matrix_stride, s.row_stride};
}

// Where a buffer of the context that outlives backward_input lies; none where it is not kept.
template <class T>
T* operand(const Context::Impl& c, int64_t offset) {
    if (c.operands.data() == nullptr) return nullptr;
    return c.operands.at<T>(offset - c.saved_bytes);
}

kernels::ExpertBuffers routed_buffers(const PassMemory& m, const PassArguments& a,
                                      const CallTensors& t) {
    const plan::Problem& p = m.setup.problem;
    const plan::WorkspaceMap& map = m.setup.map;
    const Context::Impl& c = *a.context;
    const auto local = [&m](int64_t at) { return m.local.at<const Bf16>(at); };
    const int64_t ring = plan::ring_rows(p), h = p.hidden, i = p.intermediate;
    kernels::ExpertBuffers e{};
    e.count = plan::num_local_experts(p);
    e.hidden = h;
    e.width = i;
    e.ring = {local(map.x),
              local(map.d_y),
              local(map.gate),
              local(map.up),
              local(map.w_hidden),
              local(map.d_gate),
              local(map.d_up),
              ring,
              ring};
    e.kept.gate = c.saved.at<Bf16>(c.map.gate);
    e.kept.up = c.saved.at<Bf16>(c.map.up);
    e.kept.w_hidden = operand<Bf16>(c, c.map.w_hidden);
    e.kept.d_gate = operand<Bf16>(c, c.map.d_gate);
    e.kept.d_up = operand<Bf16>(c, c.map.d_up);
    e.kept.rows = c.rows;
    e.gate = weight_of(t.gate, i, h);
    e.up = weight_of(t.up, i, h);
    e.down = weight_of(t.down, h, i);
    return e;
}

kernels::ExpertBuffers shared_buffers(const PassMemory& m, const PassArguments& a,
                                      const CallTensors& t) {
    const plan::Problem& p = m.setup.problem;
    const plan::WorkspaceMap& map = m.setup.map;
    const Context::Impl& c = *a.context;
    const int64_t tokens = a.schedule.num_tokens, h = p.hidden, s = p.shared_intermediate;
    const bool kept = plan::keeps_wgrad_operands(a.kind);
    const auto row_operand = [&](int64_t in_context, int64_t in_workspace) -> const Bf16* {
        return kept ? operand<Bf16>(c, in_context) : m.local.at<Bf16>(in_workspace);
    };
    kernels::ExpertBuffers e{};
    e.count = 1;
    e.hidden = h;
    e.width = s;
    e.ring = {t.x,
              t.d_y,
              c.saved.at<Bf16>(c.map.shared_gate),
              c.saved.at<Bf16>(c.map.shared_up),
              row_operand(c.map.shared_w_hidden, map.shared_w_hidden),
              row_operand(c.map.shared_d_gate, map.shared_d_gate),
              row_operand(c.map.shared_d_up, map.shared_d_up),
              plan::shared_rows(p, tokens),
              tokens};
    e.out = m.local.at<Bf16>(map.shared_out);
    e.gate = weight_of(t.shared_gate, s, h);
    e.up = weight_of(t.shared_up, s, h);
    e.down = weight_of(t.shared_down, h, s);
    return e;
}

}  // namespace

BackwardLaunch bind_backward(const PassMemory& m, const PassArguments& a, const CallTensors& t) {
    const Setup& setup = m.setup;
    const plan::WorkspaceMap& map = setup.map;
    const plan::WindowMap& window = setup.window_map;
    BackwardLaunch launch{};
    kernels::BackwardParams& b = launch.params;
    bind_pass(b, m, a);
    b.activation = setup.shape.activation;
    b.biases = t.biases;
    for (int r = 0; r < setup.group.size(); ++r) {
        std::byte* const at = m.peers.window(r);
        b.peer_x[r] = reinterpret_cast<const Bf16*>(at + window.x);
        b.peer_d_y[r] = reinterpret_cast<const Bf16*>(at + window.d_y);
        b.peer_topk_weights[r] = reinterpret_cast<const float*>(at + window.topk_weights);
        b.peer_combine[r] = reinterpret_cast<Bf16*>(at + window.combine);
        b.peer_router_partials[r] = reinterpret_cast<float*>(at + window.router_partials);
    }
    const int own = setup.problem.rank;
    b.peer_x[own] = t.x;
    b.peer_d_y[own] = t.d_y;
    b.peer_topk_weights[own] = t.topk_weights;
    b.ring = {m.local.at<Bf16>(map.x), m.local.at<Bf16>(map.d_y),
              m.local.at<float>(map.row_weights)};
    b.shared_d_y = t.d_y;
    b.has_shared_weights = a.inputs.shared_weights.present();
    b.shared_weights = static_cast<const float*>(a.inputs.shared_weights.data);
    b.shared_router_partials = m.local.at<float>(map.shared_router_partials);
    b.wgrad_scratch = m.local.at<float>(map.wgrad_scratch);
    const WeightGrads& g = a.weight_grads;
    b.grads = {gradient_of(g.gate),
               gradient_of(g.up),
               gradient_of(g.down),
               gradient_of(g.gate_bias),
               gradient_of(g.up_bias),
               gradient_of(g.down_bias),
               g.mode};
    b.shared_grads = {shared_gradient_of(g.shared_gate),
                      shared_gradient_of(g.shared_up),
                      shared_gradient_of(g.shared_down),
                      {},
                      {},
                      {},
                      g.shared_mode};

    kernels::ExpertBuffers routed = routed_buffers(m, a, t);
    routed.grads = &b.grads;
    launch.routed = kernels::backward_maps(routed);
    launch.shared = launch.routed;
    if (setup.shape.shared_intermediate > 0) {
        kernels::ExpertBuffers shared = shared_buffers(m, a, t);
        shared.grads = &b.shared_grads;
        launch.shared = kernels::backward_maps(shared);
    }
    return launch;
}

kernels::ReduceGradsParams bind_reduce_grads(const PassMemory& m, const PassArguments& a) {
    const plan::Problem& p = m.setup.problem;
    const plan::WorkspaceMap& map = m.setup.map;
    const plan::WindowMap& window = m.setup.window_map;
    std::byte* const own = m.peers.window(p.rank);
    const InputGrads& g = a.input_grads;
    kernels::ReduceGradsParams r{};
    r.num_tokens = static_cast<int32_t>(a.schedule.num_tokens);
    r.hidden = p.hidden;
    r.top_k = p.top_k;
    r.ids = a.schedule.ids;
    r.combine = reinterpret_cast<const Bf16*>(own + window.combine);
    r.has_shared = p.shared_intermediate > 0;
    r.shared_out = m.local.at<Bf16>(map.shared_out);
    r.wants_x = g.x.present();
    r.x_is_bf16 = g.x.dtype == DType::BF16;
    r.x = g.x.data;
    r.x_stride = g.x.stride[0];
    r.wants_topk_weights = g.topk_weights.present();
    r.num_partials = static_cast<int32_t>(plan::router_partials(p));
    r.router_partials = reinterpret_cast<const float*>(own + window.router_partials);
    r.topk_weights = static_cast<float*>(g.topk_weights.data);
    r.topk_stride = g.topk_weights.stride[0];
    r.wants_shared_weights = g.shared_weights.present();
    r.shared_partials = plan::gate_up_parts(p, true) + 1;
    r.shared_router_partials = m.local.at<float>(map.shared_router_partials);
    r.shared_weights = static_cast<float*>(g.shared_weights.data);
    return r;
}

}  // namespace mok::layer
