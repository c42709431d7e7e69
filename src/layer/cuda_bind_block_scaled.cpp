#include <algorithm>

#include "layer/cuda_bind_fp8_rows.h"
#include "math/scale_tiles.h"

// The routed parts of the passes in Mxfp8 on Blackwell, from the plan's maps.
namespace mok::layer {
namespace {

using kernels::kLoadRows;

// Tiles of 128 x 4 scales of `count` matrices [rows, cols] of FP8, one after another.
CUtensorMap scales_map(const void* at, int64_t count, int64_t rows, int64_t cols) {
    constexpr int64_t kWords = kScaleTileBytes / 4;
    const int64_t tiles = std::max<int64_t>(plan::ceil_div64(rows, kScaleTileOuter), 1) *
                          plan::ceil_div64(cols, plan::kFp8Chunk);
    return arch::make_tensor_map(
        {at, std::max<int64_t>(count, 1), tiles, kWords, kWords, tiles * kWords}, 1,
        arch::MapElement::ScaleTile);
}

kernels::BlockScaledWeight weight_maps(const PassMemory& m, const std::byte* weights,
                                       const plan::Fp8MatrixMap& map) {
    const int64_t experts = plan::num_local_experts(m.setup.problem);
    return {elements_map(weights + map.elements, experts, map.outer, map.padded_k, kLoadRows),
            scales_map(weights + map.scales, experts, map.outer, map.padded_k)};
}

// Saved gate or up as DownDgrad loads it.
CUtensorMap saved_map(const void* elements, int64_t rows, int64_t cols) {
    constexpr int kBoxRows = 64;
    rows = std::max<int64_t>(rows, 1);
    return arch::make_tensor_map({elements, 1, rows, cols, cols, rows * cols}, kBoxRows,
                                 arch::MapElement::HalfRowOfBytes);
}

}  // namespace

BlockScaledForwardLaunch bind_block_scaled_forward(const PassMemory& m, const PassArguments& a,
                                                   const CallTensors& t) {
    const Setup& setup = m.setup;
    const std::byte* const weights = a.weights.fp8->impl().memory.data();
    BlockScaledForwardLaunch launch{};
    kernels::BlockScaledForwardParams& f = launch.params;
    const kernels::BlockScaledRows hidden = bind_fp8_rows(launch, m, a, t);

    kernels::BlockScaledExpertMaps& maps = launch.maps;
    const int64_t ring = plan::ring_rows(setup.problem);
    const int64_t outer = plan::fp8_padded(setup.problem.hidden);
    const int64_t inner = plan::fp8_padded(setup.problem.intermediate);
    const auto bind_weight = [&](const plan::Fp8MatrixMap& map, CUtensorMap& elements,
                                 CUtensorMap& scales) {
        const kernels::BlockScaledWeight bound = weight_maps(m, weights, map);
        elements = bound.elements;
        scales = bound.scales;
    };
    bind_weight(setup.fp8_weights_map.gate, maps.gate, maps.gate_scales);
    bind_weight(setup.fp8_weights_map.up, maps.up, maps.up_scales);
    bind_weight(setup.fp8_weights_map.down, maps.down, maps.down_scales);
    maps.x = elements_map(f.ring_x8.elements, 1, ring, outer, kLoadRows);
    maps.x_scales = scales_map(f.ring_x8.scales, 1, ring, outer);
    maps.hidden_scales = scales_map(hidden.scales, 1, ring, inner);
    return launch;
}

BlockScaledBackwardLaunch bind_block_scaled_backward(const PassMemory& m, const PassArguments& a,
                                                     const CallTensors& t) {
    const plan::Problem& p = m.setup.problem;
    const plan::Fp8WeightsMap& weights_map = m.setup.fp8_weights_map;
    const std::byte* const weights = a.weights.fp8->impl().memory.data();
    const BackwardLaunch bf16 = bind_backward(m, a, t);
    BlockScaledBackwardLaunch launch{};
    kernels::Mxfp8BackwardParams& b = launch.params;
    static_cast<kernels::BackwardParams&>(b) = bf16.params;
    b.pass.problem.shared_intermediate = 0;
    b.ring_saved = {rows_at<kernels::Mxfp8Rows>(m.setup.map.gate8, m.local.data()),
                    rows_at<kernels::Mxfp8Rows>(m.setup.map.up8, m.local.data())};

    kernels::BlockScaledBackwardMaps& maps = launch.maps;
    static_cast<kernels::BackwardMaps&>(maps) = bf16.routed;
    const int64_t ring = plan::ring_rows(p), cols = plan::fp8_padded(p.intermediate);
    maps.ring.gate = saved_map(b.ring_saved.gate.elements, ring, cols);
    maps.ring.up = saved_map(b.ring_saved.up.elements, ring, cols);
    if (a.context->rows > 0) {
        const Context::Impl& c = *a.context;
        b.kept_saved = {rows_at<kernels::Mxfp8Rows>(c.map.gate8, c.saved.data()),
                        rows_at<kernels::Mxfp8Rows>(c.map.up8, c.saved.data())};
        maps.kept.gate = saved_map(b.kept_saved.gate.elements, c.rows, cols);
        maps.kept.up = saved_map(b.kept_saved.up.elements, c.rows, cols);
    }
    maps.gate8 = weight_maps(m, weights, weights_map.gate);
    maps.up8 = weight_maps(m, weights, weights_map.up);
    maps.gate_t8 = weight_maps(m, weights, weights_map.gate_t);
    maps.up_t8 = weight_maps(m, weights, weights_map.up_t);
    maps.down_t8 = weight_maps(m, weights, weights_map.down_t);
    return launch;
}

}  // namespace mok::layer
