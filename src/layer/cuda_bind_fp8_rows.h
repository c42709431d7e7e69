#pragma once

#include <algorithm>
#include <type_traits>

#include "layer/cuda_bind.h"

// What the forwards bind alike whose rows are elements and scales: that of Fp8Block on Hopper, that
// of Mxfp8 where tensor cores have block scales.
namespace mok::layer {

// `count` matrices of FP8, one after another, in boxes of 128 columns.
inline CUtensorMap elements_map(const void* at, int64_t count, int64_t rows, int64_t cols,
                                int box_rows) {
    rows = std::max<int64_t>(rows, 1);
    return arch::make_tensor_map({at, std::max<int64_t>(count, 1), rows, cols, cols, rows * cols},
                                 box_rows, arch::MapElement::Byte);
}

// Rows: Fp8Rows or BlockScaledRows, which differ in a scale's type.
template <class Rows>
Rows rows_at(const plan::Fp8RowsMap& map, std::byte* at) {
    return {reinterpret_cast<uint8_t*>(at + map.elements),
            reinterpret_cast<decltype(Rows::scales)>(at + map.scales)};
}

// Everything of a launch but x and the weights: parameters, hidden, and gate and up of a context.
// Returns hidden's rows.
template <class Launch>
auto bind_fp8_rows(Launch& launch, const PassMemory& m, const PassArguments& a,
                   const CallTensors& t) {
    auto& f = launch.params;
    auto& maps = launch.maps;
    using Rows = std::remove_cvref_t<decltype(f.ring_x8)>;
    const Setup& setup = m.setup;
    bind_pass(f, m, a);
    f.pass.problem.shared_intermediate = 0;
    f.activation = setup.shape.activation;
    f.saves_context = a.context != nullptr;
    f.biases = t.biases;
    for (int r = 0; r < setup.group.size(); ++r) {
        std::byte* const at = m.peers.window(r);
        f.peer_x8[r] = rows_at<Rows>(setup.window_map.x8, at);
        f.peer_combine[r] = reinterpret_cast<Bf16*>(at + setup.window_map.combine);
    }
    f.ring_x8 = rows_at<Rows>(setup.map.x8, m.local.data());
    const Rows hidden = rows_at<Rows>(setup.map.d_gate8, m.local.data());
    f.hidden_scales = hidden.scales;

    const int64_t ring = plan::ring_rows(setup.problem);
    const int64_t inner = plan::fp8_padded(setup.problem.intermediate);
    maps.hidden_load = elements_map(hidden.elements, 1, ring, inner, kernels::kLoadRows);
    // Rows that leave by ordinary stores have no maps for them.
    constexpr bool kStoresByMaps = requires {
        maps.hidden_store;
    };
    if constexpr (kStoresByMaps) {
        maps.hidden_store = elements_map(hidden.elements, 1, ring, inner, kernels::kStoreRows);
        maps.gate_save = maps.up_save = maps.hidden_store;
    } else {
        f.hidden_elements = hidden.elements;
    }
    if (a.context != nullptr && a.context->rows > 0) {
        const Context::Impl& c = *a.context;
        const Rows gate = rows_at<Rows>(c.map.gate8, c.saved.data());
        const Rows up = rows_at<Rows>(c.map.up8, c.saved.data());
        f.gate_scales = gate.scales;
        f.up_scales = up.scales;
        if constexpr (kStoresByMaps) {
            maps.gate_save = elements_map(gate.elements, 1, c.rows, inner, kernels::kStoreRows);
            maps.up_save = elements_map(up.elements, 1, c.rows, inner, kernels::kStoreRows);
        } else {
            f.gate_elements = gate.elements;
            f.up_elements = up.elements;
        }
    }
    return hidden;
}

}  // namespace mok::layer
