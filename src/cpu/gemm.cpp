#include "cpu/gemm.h"

#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

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

template <class A, class B>
void multiply_add_as(float* c, const float* a, const float* b) {
    Eigen::Map<ColMajor, 0, Stride> out(c, kBlock, kBlockCols, Stride());
    out.noalias() +=
        Block<A>(a, kBlock, kBlock, Stride()) * Block<B>(b, kBlock, kBlockCols, Stride());
}

}  // namespace

void multiply_add(float* c, const float* a, Layout a_layout, const float* b, Layout b_layout) {
    const bool a_inner = a_layout == Layout::KInner, b_inner = b_layout == Layout::KInner;
    if (a_inner && b_inner) return multiply_add_as<RowMajor, ColMajor>(c, a, b);
    if (a_inner) return multiply_add_as<RowMajor, RowMajor>(c, a, b);
    if (b_inner) return multiply_add_as<ColMajor, ColMajor>(c, a, b);
    multiply_add_as<ColMajor, RowMajor>(c, a, b);
}

}  // namespace mok::cpu
