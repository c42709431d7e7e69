#include "layer/cuda_bind.h"

#include <algorithm>
#include <chrono>

#include "comm/group_state.h"
#include "plan/make_problem.h"

namespace mok::layer {
namespace {

CUtensorMap matrix_map(const Bf16* at, int64_t rows, int64_t cols, int box_rows) {
    rows = std::max<int64_t>(rows, 1);
    return arch::make_tensor_map({at, 1, rows, cols, cols, rows * cols}, box_rows);
}

// Rows of the routed experts, by ring row, and what of them is saved, by slot.
kernels::ExpertMaps routed_maps(const PassMemory& m, const PassArguments& a, const CallTensors& t) {
    const plan::Problem& p = m.setup.problem;
    const plan::WorkspaceMap& map = m.setup.map;
    const int64_t ring = plan::ring_rows(p), h = p.hidden, i = p.intermediate;
    Bf16* const hidden = m.local.at<Bf16>(map.w_hidden);
    kernels::ExpertMaps maps{};
    maps.x = matrix_map(m.local.at<Bf16>(map.x), ring, h, kernels::kLoadRows);
    maps.gate = arch::make_tensor_map_by_fours(t.gate, kernels::kLoadRows);
    maps.up = arch::make_tensor_map_by_fours(t.up, kernels::kLoadRows);
    maps.hidden = matrix_map(hidden, ring, i, kernels::kLoadRows);
    maps.down = arch::make_tensor_map_by_fours(t.down, kernels::kLoadRows);
    maps.hidden_rows = hidden;
    if (a.context != nullptr && a.context->rows > 0) {
        const Context::Impl& c = *a.context;
        maps.gate_rows = c.saved.at<Bf16>(c.map.gate);
        maps.up_rows = c.saved.at<Bf16>(c.map.up);
    }
    return maps;
}

// Rows of the shared expert, by token. x ends at T, so that what follows it reads as zero.
kernels::ExpertMaps shared_maps(const PassMemory& m, const PassArguments& a, const CallTensors& t) {
    const plan::Problem& p = m.setup.problem;
    const plan::WorkspaceMap& map = m.setup.map;
    const int64_t tokens = a.schedule.num_tokens, rows = plan::shared_rows(p, tokens);
    const int64_t h = p.hidden, s = p.shared_intermediate;
    Bf16* const hidden = m.local.at<Bf16>(map.shared_w_hidden);
    kernels::ExpertMaps maps{};
    maps.x = matrix_map(t.x, tokens, h, kernels::kLoadRows);
    maps.gate = arch::make_tensor_map_by_fours(t.shared_gate, kernels::kLoadRows);
    maps.up = arch::make_tensor_map_by_fours(t.shared_up, kernels::kLoadRows);
    maps.hidden = matrix_map(hidden, rows, s, kernels::kLoadRows);
    maps.down = arch::make_tensor_map_by_fours(t.shared_down, kernels::kLoadRows);
    maps.hidden_rows = hidden;
    if (a.context != nullptr) {
        const Context::Impl& c = *a.context;
        maps.gate_rows = c.saved.at<Bf16>(c.map.shared_gate);
        maps.up_rows = c.saved.at<Bf16>(c.map.shared_up);
    }
    maps.out_rows = m.local.at<Bf16>(map.shared_out);
    return maps;
}

uint64_t nanoseconds_of(std::chrono::duration<double> bound) {
    // Beyond this the device's clock would wrap first.
    constexpr double kMost = 1e18;
    return static_cast<uint64_t>(std::min(bound.count() * 1e9, kMost));
}

}  // namespace

void bind_pass(kernels::PassParams& p, const PassMemory& m, const PassArguments& a) {
    const Setup& setup = m.setup;
    PassControl& control = *m.local.at<PassControl>(control_offset(setup.map));
    p.pass = {a.kind, setup.problem, a.schedule.table};
    p.pass.problem.num_tokens = static_cast<int32_t>(a.schedule.num_tokens);
    p.pass.problem.minibatch_rows = plan::minibatch_rows(setup.problem, m.num_sms, a.kind);
    p.signals = m.local.at<uint32_t>(setup.map.signals);
    p.tickets = control.tickets;
    p.aborted = &control.aborted;
    p.times = &control.times;
    p.num_traced = &control.num_traced;
    p.fault = m.fault;
    p.timeout_ns = nanoseconds_of(setup.group.state().options().timeout);
}

ForwardLaunch bind_forward(const PassMemory& m, const PassArguments& a, const CallTensors& t) {
    const Setup& setup = m.setup;
    const plan::WorkspaceMap& map = setup.map;
    ForwardLaunch launch{};
    kernels::ForwardParams& f = launch.params;
    bind_pass(f, m, a);
    f.activation = setup.shape.activation;
    f.saves_context = a.context != nullptr;
    f.biases = t.biases;
    for (int r = 0; r < setup.group.size(); ++r) {
        std::byte* const window = m.peers.window(r);
        f.peer_x[r] = reinterpret_cast<const Bf16*>(window + setup.window_map.x);
        f.peer_combine[r] = reinterpret_cast<Bf16*>(window + setup.window_map.combine);
    }
    f.peer_x[setup.problem.rank] = t.x;
    f.ring_x = m.local.at<Bf16>(map.x);
    launch.routed = routed_maps(m, a, t);
    launch.shared = launch.routed;
    if (setup.shape.shared_intermediate > 0) launch.shared = shared_maps(m, a, t);
    return launch;
}

kernels::ReduceParams bind_reduce(const PassMemory& m, const PassArguments& a) {
    const plan::Problem& p = m.setup.problem;
    const int64_t tokens = a.schedule.num_tokens;
    const ConstTensor &w = a.inputs.topk_weights, &s = a.inputs.shared_weights;
    kernels::ReduceParams r{};
    r.num_tokens = static_cast<int32_t>(tokens);
    r.hidden = p.hidden;
    r.top_k = p.top_k;
    r.ids = a.schedule.ids;
    r.topk_weights = static_cast<const float*>(w.data);
    r.weights_stride = w.stride[0];
    r.combine = reinterpret_cast<const Bf16*>(m.peers.window(p.rank) + m.setup.window_map.combine);
    r.has_shared = p.shared_intermediate > 0;
    r.shared_out = m.local.at<Bf16>(m.setup.map.shared_out);
    r.has_shared_weights = s.present();
    r.shared_weights = static_cast<const float*>(s.data);
    r.out = a.out.data;
    r.out_dtype = a.out.dtype;
    r.out_stride = a.out.stride[0];
    return r;
}

}  // namespace mok::layer
