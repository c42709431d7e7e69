#include <algorithm>

#include "layer/cuda_bind.h"
#include "math/scale_tiles.h"

// The routed part of a forward in Mxfp8 on Blackwell, from the plan's maps.
namespace mok::layer {
namespace {

using kernels::kLoadRows, kernels::kStoreRows;

kernels::BlockScaledRows rows_at(const plan::Fp8RowsMap& map, std::byte* at) {
    return {reinterpret_cast<uint8_t*>(at + map.elements),
            reinterpret_cast<uint32_t*>(at + map.scales)};
}

CUtensorMap elements_map(const void* at, int64_t count, int64_t rows, int64_t cols, int box_rows) {
    rows = std::max<int64_t>(rows, 1);
    return arch::make_tensor_map({at, std::max<int64_t>(count, 1), rows, cols, cols, rows * cols},
                                 box_rows, arch::MapElement::Byte);
}
// Tiles of 128 x 4 scales of `count` matrices [rows, cols] of FP8, one after another.
CUtensorMap scales_map(const void* at, int64_t count, int64_t rows, int64_t cols) {
    constexpr int64_t kWords = kScaleTileBytes / 4;
    const int64_t tiles = std::max<int64_t>(plan::ceil_div64(rows, kScaleTileOuter), 1) *
                          plan::ceil_div64(cols, plan::kFp8Chunk);
    return arch::make_tensor_map(
        {at, std::max<int64_t>(count, 1), tiles, kWords, kWords, tiles * kWords}, 1,
        arch::MapElement::ScaleTile);
}

}  // namespace

BlockScaledForwardLaunch bind_block_scaled_forward(const PassMemory& m, const PassArguments& a,
                                                   const CallTensors& t) {
    const Setup& setup = m.setup;
    const plan::WindowMap& window = setup.window_map;
    const std::byte* const weights = a.weights.fp8->impl().memory.data();
    const int64_t experts = plan::num_local_experts(setup.problem);
    BlockScaledForwardLaunch launch{};
    kernels::BlockScaledForwardParams& f = launch.params;
    bind_pass(f, m, a);
    f.pass.problem.shared_intermediate = 0;
    f.activation = setup.shape.activation;
    f.saves_context = a.context != nullptr;
    f.biases = t.biases;
    for (int r = 0; r < setup.group.size(); ++r) {
        std::byte* const at = m.peers.window(r);
        f.peer_x8[r] = rows_at(window.x8, at);
        f.peer_combine[r] = reinterpret_cast<Bf16*>(at + window.combine);
    }
    const kernels::BlockScaledRows hidden = rows_at(setup.map.d_gate8, m.local.data());
    f.ring_x8 = rows_at(setup.map.x8, m.local.data());
    f.hidden_scales = hidden.scales;

    kernels::BlockScaledExpertMaps& maps = launch.maps;
    const int64_t ring = plan::ring_rows(setup.problem);
    const int64_t outer = plan::fp8_padded(setup.problem.hidden);
    const int64_t inner = plan::fp8_padded(setup.problem.intermediate);
    const auto bind_weight = [&](const plan::Fp8MatrixMap& map, CUtensorMap& elements,
                                 CUtensorMap& scales) {
        elements =
            elements_map(weights + map.elements, experts, map.outer, map.padded_k, kLoadRows);
        scales = scales_map(weights + map.scales, experts, map.outer, map.padded_k);
    };
    bind_weight(setup.fp8_weights_map.gate, maps.gate, maps.gate_scales);
    bind_weight(setup.fp8_weights_map.up, maps.up, maps.up_scales);
    bind_weight(setup.fp8_weights_map.down, maps.down, maps.down_scales);
    maps.x = elements_map(f.ring_x8.elements, 1, ring, outer, kLoadRows);
    maps.x_scales = scales_map(f.ring_x8.scales, 1, ring, outer);
    maps.hidden_load = elements_map(hidden.elements, 1, ring, inner, kLoadRows);
    maps.hidden_store = elements_map(hidden.elements, 1, ring, inner, kStoreRows);
    maps.hidden_scales = scales_map(hidden.scales, 1, ring, inner);
    maps.gate_save = maps.up_save = maps.hidden_store;
    if (a.context != nullptr && a.context->rows > 0) {
        const Context::Impl& c = *a.context;
        const kernels::BlockScaledRows gate = rows_at(c.map.gate8, c.saved.data());
        const kernels::BlockScaledRows up = rows_at(c.map.up8, c.saved.data());
        f.gate_scales = gate.scales;
        f.up_scales = up.scales;
        maps.gate_save = elements_map(gate.elements, 1, c.rows, inner, kStoreRows);
        maps.up_save = elements_map(up.elements, 1, c.rows, inner, kStoreRows);
    }
    return launch;
}

}  // namespace mok::layer
