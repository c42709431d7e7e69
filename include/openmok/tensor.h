#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace mok {

enum class DType { BF16, F32, I32, I64 };

constexpr int64_t dtype_bytes(DType dtype) {
    return dtype == DType::BF16 ? 2 : dtype == DType::I64 ? 8 : 4;
}
constexpr const char* dtype_name(DType dtype) {
    switch (dtype) {
        case DType::BF16:
            return "BF16";
        case DType::F32:
            return "F32";
        case DType::I32:
            return "I32";
        default:
            return "I64";
    }
}

// A tensor that the caller owns: up to three dimensions, the last one contiguous, the others with
// strides in elements. A view with no data is an absent tensor. Void is `const void` or `void`.
template <class Void>
struct BasicTensor {
    Void* data = nullptr;
    DType dtype = DType::BF16;
    int dims = 0;
    std::array<int64_t, 3> shape{};
    std::array<int64_t, 3> stride{};

    BasicTensor() = default;
    // Contiguous, row-major.
    BasicTensor(Void* data, DType dtype, std::initializer_list<int64_t> sizes)
        : data(data), dtype(dtype), dims(static_cast<int>(sizes.size())) {
        int i = 0;
        for (const int64_t size : sizes) shape[i++] = size;
        int64_t step = 1;
        for (i = dims - 1; i >= 0; --i) {
            stride[i] = step;
            step *= shape[i];
        }
    }
    // A tensor that may be written can be read.
    operator BasicTensor<const void>() const requires(!std::is_const_v<Void>) {
        BasicTensor<const void> view;
        view.data = data;
        view.dtype = dtype;
        view.dims = dims;
        view.shape = shape;
        view.stride = stride;
        return view;
    }
    bool present() const { return data != nullptr; }
};

using ConstTensor = BasicTensor<const void>;
using Tensor = BasicTensor<void>;

}  // namespace mok
