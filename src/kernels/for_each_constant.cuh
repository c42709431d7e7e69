#pragma once

#include <type_traits>
#include <utility>

namespace mok::kernels {

// visit(i) for i = 0 .. kCount - 1, each a constant: addresses become offsets in instructions.
template <int kCount, class Visit>
__device__ __forceinline__ void for_each_constant(Visit&& visit) {
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
        (visit(std::integral_constant<int, kIndex>{}), ...);
    }
    (std::make_integer_sequence<int, kCount>{});
}

}  // namespace mok::kernels
