#pragma once

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

}  // namespace mok::kernels
