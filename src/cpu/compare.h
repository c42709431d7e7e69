#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Comparison of a computed tensor with the FP64 oracle's, within bounds, and of two computed
// tensors bit by bit.
//
// A row is the last dimension; a vector [N] is one row of N, a scalar one row of 1. The RMS of a
// row is its norm / sqrt(number of finite elements).
//
// A row's own norm can be far below its rounding error where cancellation or a zero of the
// activation's slope made the row small, so the size that a row is measured by has a floor:
//  - rows shorter than kShortRow, e.g. router gradients [N, K], each an inner product that may
//    cancel, are measured by the tensor's RMS where that is larger than their own, and a tensor of
//    fewer than kShortRow elements is held to the row's bound instead of the tensor's;
//  - row_floor does the same for long rows, by a part of the tensor's RMS. The weight gradients of
//  an
//    expert with few tokens need it: such a row is one token's x times one d_gate, and d_gate is
//    small near silu'(-1.278) = 0 or up = -beta, where the rounding of the saved gate and up to
//    BF16 is not;
//  - min_rms is the usual size of an element as the caller knows it, for tensors of a handful of
//    sums (the oracle's topk_weights_rms and shared_weights_rms).
namespace mok {

inline constexpr int64_t kShortRow = 32;

struct Bounds {
    double tensor = 4e-3;              // error norm < this of the tensor's norm
    double row = 1.5e-2;               // error norm < this of the row's norm
    double element_rms = 0.05;         // |error| < this of the row's RMS
    double element_own = 0x1p-7;       //           + this of |want|
    double row_floor = 0.0;            // a row's RMS counts as at least this part of the tensor's
    double min_rms = 0.0;              // RMS that every row and the tensor count as having at least
    bool every_zero_is_exact = false;  // not only whole rows: each want of 0 must be met by 0
};

enum class Bound { kNonFinite, kZero, kElement, kRow, kTensor, kBits };

struct Mismatch {
    std::string tensor;
    std::vector<int64_t> coordinate;
    Bound bound = Bound::kTensor;
    double found = 0.0;  // kBits: unused, as want
    double want = 0.0;
    double error = 0.0;  // kElement: absolute; kRow, kTensor: of the norm; others: unused, as limit
    double limit = 0.0;
    uint64_t found_bits = 0;  // kBits only, as the next two
    uint64_t want_bits = 0;
    size_t element_bytes = 0;

    // E.g. "output[3,17]: found 1.25, expected 1.5 (row error 0.02 of its norm, bound 0.015)".
    std::string sentence() const;
};

// The first violation in this order, or nothing:
// kNonFinite: a NaN or Inf in want (or a value beyond FP32's range) must be met by a NaN or Inf in
//     found, and nothing else may be; both are left out of every norm below.
// kZero: a row of want that is exactly zero must be met by exact zeros (of either sign).
// kElement, kRow: the first row that violates one of them; of kRow the element of largest error.
// kTensor: the element of largest error.
// Errors below FP32's smallest normal number count as none. Throws std::invalid_argument where
// the shape's product is not the length of both tensors.
std::optional<Mismatch> compare(std::string_view tensor, std::span<const float> found,
                                std::span<const double> want, std::span<const int64_t> shape,
                                Bounds bounds = {});

// The first element whose bytes differ (kBits). Elements of 1, 2, 4 or 8 bytes in the machine's
// byte order; throws as compare does.
std::optional<Mismatch> compare_raw_bits(std::string_view tensor, std::span<const std::byte> found,
                                         std::span<const std::byte> want,
                                         std::span<const int64_t> shape, size_t element_bytes);

template <class T>
std::optional<Mismatch> compare_bits(std::string_view tensor, std::span<const T> found,
                                     std::span<const T> want, std::span<const int64_t> shape) {
    static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
    return compare_raw_bits(tensor, std::as_bytes(found), std::as_bytes(want), shape, sizeof(T));
}

}  // namespace mok
