#pragma once

#include <cuda_fp8.h>

#include "kernels/quantise.h"
#include "math/fp8_divider.h"

// What quantisers of both recipes do with eight neighbours of a row, which one thread has.
namespace mok::kernels {

inline constexpr int kQuantiserThreads = 256;
inline constexpr int kAtOnce = 8;

struct alignas(16) Values {
    Bf16 at[kAtOnce];
};

__device__ inline uint32_t size_of(const Values& v) {
    Amax amax;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) amax = max_with(amax, v.at[i]);
    return amax.bits;
}

// What Mxfp8::element_of multiplies by, as Fp8Divider is for Fp8Block.
class Mxfp8Multiplier {
  public:
    __device__ explicit Mxfp8Multiplier(Amax amax) : scale_(Mxfp8::scale_of(amax)) {
        factor_ = scale_.bits == kUe8m0NaN
                      ? __uint_as_float(0x7fc00000u)
                      : __uint_as_float(static_cast<uint32_t>(254 - scale_.bits) << 23);
    }
    __device__ Ue8m0 scale() const { return scale_; }
    __device__ float quotient(float x) const { return x * factor_; }

  private:
    Ue8m0 scale_;
    float factor_;
};

template <class Recipe>
struct QuotientsOf;
template <>
struct QuotientsOf<Fp8Block> {
    using Type = Fp8Divider;
};
template <>
struct QuotientsOf<Mxfp8> {
    using Type = Mxfp8Multiplier;
};

__device__ inline uint32_t two_elements(float low, float high) {
    return __nv_cvt_float2_to_fp8x2(float2{low, high}, __NV_SATFINITE, __NV_E4M3);
}

// Of the first `count` values; zeros behind them, in a block of NaN too.
template <class Quotients>
__device__ inline uint64_t elements_of(const Values& v, int64_t count, const Quotients& quotients) {
    uint64_t elements = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; i += 2) {
        const uint64_t both = two_elements(quotients.quotient(to_f32(v.at[i])),
                                           quotients.quotient(to_f32(v.at[i + 1])));
        elements |= both << (8 * i);
    }
    if (count >= kAtOnce) return elements;
    return count > 0 ? elements & ((uint64_t{1} << (8 * count)) - 1) : 0;
}

// Of a weight from (row, col) on, zeros behind its end.
__device__ inline Values load_values(const QuantiseWeights& p, int64_t matrix, int64_t row,
                                     int64_t col) {
    Values v{};
    if (row >= p.rows) return v;
    const int64_t at = matrix * p.matrix_stride + row * p.row_stride + col;
    const auto* bf16 = static_cast<const Bf16*>(p.from) + at;
    if (p.dtype == DType::BF16 && col + kAtOnce <= p.cols &&
        reinterpret_cast<uintptr_t>(bf16) % 16 == 0) {
        return *reinterpret_cast<const Values*>(bf16);
    }
    const auto* f32 = static_cast<const float*>(p.from) + at;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
        if (col + i < p.cols) v.at[i] = p.dtype == DType::BF16 ? bf16[i] : to_bf16(f32[i]);
    }
    return v;
}

}  // namespace mok::kernels
