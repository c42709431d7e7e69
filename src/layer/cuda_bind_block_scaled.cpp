#include <algorithm>

#include "layer/cuda_bind_fp8_rows.h"
#include "math/scale_tiles.h"

// The routed part of a forward in Mxfp8 on Blackwell, from the plan's maps.
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

}  // namespace

BlockScaledForwardLaunch bind_block_scaled_forward(const PassMemory& m, const PassArguments& a,
                                                   const CallTensors& t) {
    const Setup& setup = m.setup;
    const std::byte* const weights = a.weights.fp8->impl().memory.data();
    const int64_t experts = plan::num_local_experts(setup.problem);
    BlockScaledForwardLaunch launch{};
    kernels::BlockScaledForwardParams& f = launch.params;
    const kernels::BlockScaledRows hidden = bind_fp8_rows(launch, m, a, t);

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
    maps.hidden_scales = scales_map(hidden.scales, 1, ring, inner);
    return launch;
}

}  // namespace mok::layer
