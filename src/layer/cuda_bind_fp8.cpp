#include <algorithm>

#include "layer/cuda_bind_fp8_rows.h"

// The routed part of a forward in Fp8Block, from the plan's maps.
namespace mok::layer {
namespace {

using kernels::kLoadRows;

// Saved gate or up as DownDgrad loads it.
CUtensorMap saved_map(const void* elements, int64_t rows, int64_t cols) {
    constexpr int kBoxRows = 64;
    rows = std::max<int64_t>(rows, 1);
    return arch::make_tensor_map({elements, 1, rows, cols, cols, rows * cols}, kBoxRows,
                                 arch::MapElement::HalfRowOfBytes);
}

CUtensorMap weight_map(const PassMemory& m, const std::byte* weights,
                       const plan::Fp8MatrixMap& map) {
    const int64_t experts = plan::num_local_experts(m.setup.problem);
    return elements_map(weights + map.elements, experts, map.outer, map.padded_k, kLoadRows);
}

// The same, its rows by fours.
CUtensorMap weight_map_by_fours(const PassMemory& m, const std::byte* weights,
                                const plan::Fp8MatrixMap& map) {
    const int64_t experts = std::max<int64_t>(plan::num_local_experts(m.setup.problem), 1);
    return arch::make_tensor_map_by_fours({weights + map.elements, experts, map.outer, map.padded_k,
                                           map.padded_k, map.outer * map.padded_k},
                                          kLoadRows, arch::MapElement::Byte);
}

// Of tiles of the ring [columns][128], each in the place of its rows.
CUtensorMap slots_map(const void* at, int64_t tiles, int64_t cols) {
    const int64_t tile_bytes = plan::kTileRows * plan::fp8_padded(cols);
    return arch::make_tensor_map(
        {at, std::max<int64_t>(tiles, 1), cols, plan::kTileRows, plan::kTileRows, tile_bytes},
        kLoadRows, arch::MapElement::Byte);
}

// What units write and products read: operands by rows, and by slots.
void bind_units(Fp8BackwardLaunch& launch, const PassMemory& m) {
    const plan::Problem& p = m.setup.problem;
    const plan::Fp8SlotsMap slots = plan::fp8_slots_map(p);
    const int64_t ring = plan::ring_rows(p), tiles = plan::ceil_div64(ring, plan::kTileRows);
    kernels::Fp8BackwardParams& b = launch.params;
    kernels::Fp8BackwardMaps& maps = launch.maps;
    std::byte* const local = m.local.data();
    b.quantised = reinterpret_cast<uint32_t*>(m.fp8_slots + slots.counters);
    const auto by_rows = [&](const plan::Fp8RowsMap& map, int64_t cols, CUtensorMap& of) {
        const auto rows = rows_at<kernels::Fp8Rows>(map, local);
        of = elements_map(rows.elements, 1, ring, plan::fp8_padded(cols), kLoadRows);
        return rows;
    };
    const auto by_slots = [&](const plan::Fp8RowsMap& map, std::byte* at, int64_t cols,
                              CUtensorMap& of) {
        const auto rows = rows_at<kernels::Fp8Rows>(map, at);
        of = slots_map(rows.elements, tiles, cols);
        return rows;
    };
    b.d_y = by_rows(m.setup.map.d_y8, p.hidden, maps.d_y8);
    b.d_gate = by_rows(m.setup.map.d_gate8, p.intermediate, maps.d_gate8);
    b.d_up = by_rows(m.setup.map.d_up8, p.intermediate, maps.d_up8);
    b.x_slots = by_slots(m.setup.map.x8, local, p.hidden, maps.x_slots);
    b.d_y_slots = by_slots(slots.d_y, m.fp8_slots, p.hidden, maps.d_y_slots);
    b.w_hidden_slots = by_slots(slots.w_hidden, m.fp8_slots, p.intermediate, maps.w_hidden_slots);
    b.d_gate_slots = by_slots(slots.d_gate, m.fp8_slots, p.intermediate, maps.d_gate_slots);
    b.d_up_slots = by_slots(slots.d_up, m.fp8_slots, p.intermediate, maps.d_up_slots);
}

const float* weight_scales(const std::byte* weights, const plan::Fp8MatrixMap& map) {
    return reinterpret_cast<const float*>(weights + map.scales);
}

}  // namespace

Fp8ForwardLaunch bind_fp8_forward(const PassMemory& m, const PassArguments& a,
                                  const CallTensors& t) {
    const Setup& setup = m.setup;
    const plan::Fp8WeightsMap& weights_map = setup.fp8_weights_map;
    const std::byte* const weights = a.weights.fp8->impl().memory.data();
    Fp8ForwardLaunch launch{};
    kernels::Fp8ForwardParams& f = launch.params;
    bind_fp8_rows(launch, m, a, t);
    f.gate_weight_scales = weight_scales(weights, weights_map.gate);
    f.up_weight_scales = weight_scales(weights, weights_map.up);
    f.down_weight_scales = weight_scales(weights, weights_map.down);

    kernels::Fp8ExpertMaps& maps = launch.maps;
    const int64_t ring = plan::ring_rows(setup.problem);
    maps.x = elements_map(f.ring_x8.elements, 1, ring, plan::fp8_padded(setup.problem.hidden),
                          kLoadRows);
    maps.gate = weight_map_by_fours(m, weights, weights_map.gate);
    maps.up = weight_map_by_fours(m, weights, weights_map.up);
    maps.down = weight_map_by_fours(m, weights, weights_map.down);
    return launch;
}

Fp8BackwardLaunch bind_fp8_backward(const PassMemory& m, const PassArguments& a,
                                    const CallTensors& t) {
    const plan::Problem& p = m.setup.problem;
    const plan::Fp8WeightsMap& weights_map = m.setup.fp8_weights_map;
    const std::byte* const weights = a.weights.fp8->impl().memory.data();
    const BackwardLaunch bf16 = bind_backward(m, a, t);
    Fp8BackwardLaunch launch{};
    kernels::Fp8BackwardParams& b = launch.params;
    static_cast<kernels::BackwardParams&>(b) = bf16.params;
    b.pass.problem.shared_intermediate = 0;
    b.ring_saved = {rows_at<kernels::Fp8Rows>(m.setup.map.gate8, m.local.data()),
                    rows_at<kernels::Fp8Rows>(m.setup.map.up8, m.local.data())};
    b.gate_weight_scales = weight_scales(weights, weights_map.gate);
    b.up_weight_scales = weight_scales(weights, weights_map.up);
    b.down_weight_scales = weight_scales(weights, weights_map.down);

    kernels::Fp8BackwardMaps& maps = launch.maps;
    static_cast<kernels::BackwardMaps&>(maps) = bf16.routed;
    bind_units(launch, m);
    const int64_t ring = plan::ring_rows(p), cols = plan::fp8_padded(p.intermediate);
    maps.ring.gate = saved_map(b.ring_saved.gate.elements, ring, cols);
    maps.ring.up = saved_map(b.ring_saved.up.elements, ring, cols);
    maps.gate8 = weight_map(m, weights, weights_map.gate);
    maps.up8 = weight_map(m, weights, weights_map.up);
    maps.gate_t8 = weight_map(m, weights, weights_map.gate_t);
    maps.up_t8 = weight_map(m, weights, weights_map.up_t);
    maps.down_t8 = weight_map(m, weights, weights_map.down_t);
    if (a.context->rows > 0) {
        const Context::Impl& c = *a.context;
        b.kept_saved = {rows_at<kernels::Fp8Rows>(c.map.gate8, c.saved.data()),
                        rows_at<kernels::Fp8Rows>(c.map.up8, c.saved.data())};
        maps.kept.gate = saved_map(b.kept_saved.gate.elements, c.rows, cols);
        maps.kept.up = saved_map(b.kept_saved.up.elements, c.rows, cols);
    }
    return launch;
}

kernels::QuantiseRows bind_quantise_x(const PassMemory& m, const CallTensors& t,
                                      int64_t num_tokens) {
    const plan::Problem& p = m.setup.problem;
    const plan::Fp8RowsMap& map = m.setup.window_map.x8;
    std::byte* const at = m.peers.window(p.rank);
    return {t.x,
            num_tokens,
            p.hidden,
            p.precision,
            reinterpret_cast<uint8_t*>(at + map.elements),
            at + map.scales};
}

}  // namespace mok::layer
