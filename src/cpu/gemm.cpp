#include "cpu/gemm.h"

#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <cmath>

namespace mok::cpu {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ColMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
using Stride = Eigen::OuterStride<kBlock>;
template <class Matrix>
using Block = Eigen::Map<const Matrix, 0, Stride>;

// Eigen cuts k by the size of the caches it finds. Fixed sizes keep one cut (k = 128 in one go) and
// so one order of sums on every machine with the same instruction set.
const bool kCachesFixed = [] {
    Eigen::setCpuCacheSizes(32 << 10, 512 << 10, 4 << 20);
    return true;
}();

// Rows of i whose sums Eigen's kernel for AVX2 forms by one product after the other; it takes 24
// rows at a time. Those of the last 8 are two sums, of even and of odd k, added at the end.
constexpr int64_t kWholeRows = 120;
#if defined(__aarch64__)
constexpr int64_t kEigenRows = kWholeRows;  // which its kernel for NEON sums in the same order
#else
constexpr int64_t kEigenRows = kBlock;
#endif

template <class A, class B>
void multiply_add_as(float* c, const float* a, const float* b) {
    Eigen::Map<ColMajor, 0, Stride> out(c, kEigenRows, kBlockCols, Stride());
    const Block<A> left(a, kEigenRows, kBlock, Stride());
    const Block<B> right(b, kBlock, kBlockCols, Stride());
    out.noalias() += left * right;
}

// The rows that multiply_add_as leaves.
void add_last_rows(float* c, const float* a, bool a_inner, const float* b, bool b_inner) {
    constexpr int64_t kRows = kBlock - kEigenRows;
    if constexpr (kRows > 0) {
        for (int64_t j = 0; j < kBlockCols; ++j) {
            float sum[2][kRows] = {};
            for (int64_t k = 0; k < kBlock; ++k) {
                const float factor = b_inner ? b[j * kBlock + k] : b[k * kBlock + j];
                for (int64_t r = 0; r < kRows; ++r) {
                    const int64_t i = kEigenRows + r;
                    const float value = a_inner ? a[i * kBlock + k] : a[k * kBlock + i];
                    sum[k % 2][r] = std::fma(value, factor, sum[k % 2][r]);
                }
            }
            for (int64_t r = 0; r < kRows; ++r) {
                c[j * kBlock + kEigenRows + r] += sum[0][r] + sum[1][r];
            }
        }
    }
}

}  // namespace

void multiply_add(float* c, const float* a, Layout a_layout, const float* b, Layout b_layout) {
    const bool a_inner = a_layout == Layout::KInner, b_inner = b_layout == Layout::KInner;
    add_last_rows(c, a, a_inner, b, b_inner);
    if (a_inner && b_inner) return multiply_add_as<RowMajor, ColMajor>(c, a, b);
    if (a_inner) return multiply_add_as<RowMajor, RowMajor>(c, a, b);
    if (b_inner) return multiply_add_as<ColMajor, ColMajor>(c, a, b);
    multiply_add_as<ColMajor, RowMajor>(c, a, b);
}

}  // namespace mok::cpu
