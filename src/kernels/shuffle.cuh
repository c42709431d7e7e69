#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace mok::kernels {

// The value that lane `from` has; all lanes of the warp call it.
template <class Value>
__device__ inline Value value_of_lane(const Value& value, int from) {
    static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) % sizeof(int) == 0);
    int words[sizeof(Value) / sizeof(int)];
    std::memcpy(words, &value, sizeof(Value));
#pragma unroll
    for (int& word : words) word = __shfl_sync(~0u, word, from);
    Value result;
    std::memcpy(&result, words, sizeof(Value));
    return result;
}

// The place of bit n among the bits that are set, n counting from 0.
__device__ inline int lane_of_bit(uint32_t bits, int n) {
    int lane = 0;
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
        if (__popc(bits & ((1u << (lane + half)) - 1)) <= n) lane += half;
    }
    return lane;
}

}  // namespace mok::kernels
