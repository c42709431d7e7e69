#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <vector>

namespace mok::train {

// FP32 numbers at an aligned address.
using Buffer = std::vector<float, Eigen::aligned_allocator<float>>;

// Row-major matrices in memory that somebody else owns. Products are called from one thread on
// shapes that depend on the configuration alone, so that Eigen's order of summation does as well.
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

inline Eigen::Map<Matrix> matrix(float* data, int64_t rows, int64_t columns) {
    return {data, rows, columns};
}
inline Eigen::Map<const Matrix> matrix(const float* data, int64_t rows, int64_t columns) {
    return {data, rows, columns};
}

}  // namespace mok::train
