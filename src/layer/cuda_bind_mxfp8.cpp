#include "layer/cuda_bind.h"

#include <algorithm>

// The routed parts of the passes in Mxfp8: those of BF16, with what differs put in.
namespace mok::layer {
namespace {

kernels::Mxfp8Rows rows_at(const plan::Fp8RowsMap& map, std::byte* at) {
    return {reinterpret_cast<uint8_t*>(at + map.elements),
            reinterpret_cast<Ue8m0*>(at + map.scales)};
}

// The call's tensors with the weights as BF16 numbers.
CallTensors with_weights(const PassMemory& m, const PassArguments& a, const CallTensors& t,
                         const plan::Mxfp8OperandsMap::Place& place) {
    const plan::Problem& p = m.setup.problem;
    const int64_t experts = std::max(plan::num_local_experts(p), 1);
    const std::byte* const operands = a.weights.fp8->impl().operands.data();
    const auto stack = [&](int64_t at, int64_t rows, int64_t cols) -> arch::MatrixStack {
        return {operands + at, experts, rows, cols, cols, rows * cols};
    };
    CallTensors own = t;
    own.gate = stack(place.gate, p.intermediate, p.hidden);
    own.up = stack(place.up, p.intermediate, p.hidden);
    own.down = stack(place.down, p.hidden, p.intermediate);
    return own;
}

kernels::Mxfp8GateUp kept_gate_up(const PassArguments& a) {
    if (a.context == nullptr || a.context->rows == 0) return {};
    const Context::Impl& c = *a.context;
    return {rows_at(c.map.gate8, c.saved.data()), rows_at(c.map.up8, c.saved.data())};
}

// Saved gate or up as DownDgrad loads it.
CUtensorMap saved_map(const PassMemory& m, const kernels::Mxfp8Rows& rows, int64_t count) {
    constexpr int kBoxRows = 64;
    const int64_t cols = plan::fp8_padded(m.setup.problem.intermediate);
    return arch::make_tensor_map({rows.elements, 1, count, cols, cols, count * cols}, kBoxRows,
                                 arch::MapElement::HalfRowOfBytes);
}

}  // namespace

Mxfp8ForwardLaunch bind_mxfp8_forward(const PassMemory& m, const PassArguments& a,
                                      const CallTensors& t) {
    const plan::Mxfp8OperandsMap operands = plan::mxfp8_operands_map(m.setup.problem);
    const ForwardLaunch bf16 = bind_forward(m, a, with_weights(m, a, t, operands.forward));
    Mxfp8ForwardLaunch launch{};
    kernels::Mxfp8ForwardParams& f = launch.params;
    static_cast<kernels::ForwardParams&>(f) = bf16.params;
    f.pass.problem.shared_intermediate = 0;
    for (int r = 0; r < m.setup.group.size(); ++r) {
        f.peer_x8[r] = rows_at(m.setup.window_map.x8, m.peers.window(r));
    }
    f.saved = kept_gate_up(a);
    launch.maps = bf16.routed;
    return launch;
}

Mxfp8BackwardLaunch bind_mxfp8_backward(const PassMemory& m, const PassArguments& a,
                                        const CallTensors& t) {
    const plan::Problem& p = m.setup.problem;
    const plan::Mxfp8OperandsMap operands = plan::mxfp8_operands_map(p);
    const BackwardLaunch bf16 = bind_backward(m, a, with_weights(m, a, t, operands.input_grads));
    Mxfp8BackwardLaunch launch{};
    kernels::Mxfp8BackwardParams& b = launch.params;
    static_cast<kernels::BackwardParams&>(b) = bf16.params;
    b.pass.problem.shared_intermediate = 0;
    b.ring_saved = {rows_at(m.setup.map.gate8, m.local.data()),
                    rows_at(m.setup.map.up8, m.local.data())};
    b.kept_saved = kept_gate_up(a);

    kernels::Mxfp8BackwardMaps& maps = launch.maps;
    static_cast<kernels::BackwardMaps&>(maps) = bf16.routed;
    const int64_t ring = std::max<int64_t>(plan::ring_rows(p), 1);
    maps.ring.gate = saved_map(m, b.ring_saved.gate, ring);
    maps.ring.up = saved_map(m, b.ring_saved.up, ring);
    if (a.context->rows > 0) {
        maps.kept.gate = saved_map(m, b.kept_saved.gate, a.context->rows);
        maps.kept.up = saved_map(m, b.kept_saved.up, a.context->rows);
    }
    constexpr int kBoxRows = 64;
    const CallTensors forward = with_weights(m, a, t, operands.forward);
    maps.gate_along_h = arch::make_tensor_map(forward.gate, kBoxRows);
    maps.up_along_h = arch::make_tensor_map(forward.up, kBoxRows);
    return launch;
}

}  // namespace mok::layer
