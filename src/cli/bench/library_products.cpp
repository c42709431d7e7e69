#include "cli/bench/library_products.h"

#include <Eigen/Core>
#include <atomic>
#include <chrono>
#include <thread>

#include "cli/common/random.h"

namespace mok::cli {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Map<const Matrix>;
using Result = Eigen::Map<Matrix>;

// The library cuts its products by the caches of this machine, not by the fixed sizes that the
// backend sets for the sake of its bits; those are put back afterwards.
class OwnCacheSizes {
  public:
    OwnCacheSizes() {
        int l1 = 0, l2 = 0, l3 = 0;
        Eigen::internal::queryCacheSizes(l1, l2, l3);
        if (l1 > 0 && l2 > 0 && l3 > 0) Eigen::setCpuCacheSizes(l1, l2, l3);
    }
    ~OwnCacheSizes() { Eigen::setCpuCacheSizes(l1_, l2_, l3_); }
    OwnCacheSizes(const OwnCacheSizes&) = delete;
    OwnCacheSizes& operator=(const OwnCacheSizes&) = delete;

  private:
    std::ptrdiff_t l1_ = Eigen::l1CacheSize(), l2_ = Eigen::l2CacheSize(),
                   l3_ = Eigen::l3CacheSize();
};

std::vector<float> random_matrix(Random& random, int64_t elements) {
    std::vector<float> m(elements);
    for (float& v : m) v = static_cast<float>(random.uniform() - 0.5);
    return m;
}

}  // namespace

LibraryProducts::LibraryProducts(std::span<const int32_t> rows_per_expert, int64_t hidden,
                                 int64_t intermediate, bool backward, int num_threads)
    : first_row_{0}, hidden_(hidden), intermediate_(intermediate), num_threads_(num_threads) {
    for (const int32_t rows : rows_per_expert) first_row_.push_back(first_row_.back() + rows);
    const int64_t rows = first_row_.back();
    const int64_t weights = std::ssize(rows_per_expert) * hidden * intermediate;
    Random random(1);
    x_ = random_matrix(random, rows * hidden);
    d_y_ = random_matrix(random, rows * hidden);
    d_gate_rows_ = random_matrix(random, rows * intermediate);
    d_up_rows_ = random_matrix(random, rows * intermediate);
    gate_out_.resize(rows * intermediate);
    up_out_.resize(rows * intermediate);
    rows_out_.resize(rows * hidden);
    w_gate_ = random_matrix(random, weights);
    w_up_ = random_matrix(random, weights);
    w_down_ = random_matrix(random, weights);
    if (!backward) return;
    for (std::vector<float>* grad : {&d_gate_, &d_up_, &d_down_}) grad->resize(weights);
}

// Runs products(expert, i) for all experts and i below products_per_expert.
template <class Products>
double LibraryProducts::timed_ms(int products_per_expert, Products&& products) {
    const OwnCacheSizes own;
    const int64_t experts = std::ssize(first_row_) - 1;
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t i = next++; i < experts * products_per_expert; i = next++) {
            products(i % experts, static_cast<int>(i / experts));
        }
    };
    const auto begin = std::chrono::steady_clock::now();
    {
        std::vector<std::jthread> others;
        for (int i = 1; i < num_threads_; ++i) others.emplace_back(work);
        work();
    }
    const auto end = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::milli>(end - begin).count();
}

double LibraryProducts::forward_ms() {
    return timed_ms(3, [this](int64_t e, int i) {
        const int64_t first = first_row_[e], rows = first_row_[e + 1] - first;
        const int64_t h = hidden_, w = intermediate_, at = e * h * w;
        const View x(x_.data() + first * h, rows, h),
            hidden(d_gate_rows_.data() + first * w, rows, w);
        if (i < 2) {
            const View weight((i == 0 ? w_gate_ : w_up_).data() + at, w, h);
            Result out((i == 0 ? gate_out_ : up_out_).data() + first * w, rows, w);
            out.noalias() = x * weight.transpose();
        } else {
            const View weight(w_down_.data() + at, h, w);
            Result(rows_out_.data() + first * h, rows, h).noalias() = hidden * weight.transpose();
        }
    });
}

double LibraryProducts::backward_ms() {
    return timed_ms(5, [this](int64_t e, int i) {
        const int64_t first = first_row_[e], rows = first_row_[e + 1] - first;
        const int64_t h = hidden_, w = intermediate_, at = e * h * w;
        const View x(x_.data() + first * h, rows, h), d_y(d_y_.data() + first * h, rows, h);
        const View d_gate(d_gate_rows_.data() + first * w, rows, w);
        const View d_up(d_up_rows_.data() + first * w, rows, w);
        const View gate(w_gate_.data() + at, w, h), up(w_up_.data() + at, w, h);
        const View down(w_down_.data() + at, h, w);
        Result d_hidden(gate_out_.data() + first * w, rows, w);
        Result d_x(rows_out_.data() + first * h, rows, h);
        switch (i) {
            case 0:  // d_hidden
                d_hidden.noalias() = d_y * down;
                break;
            case 1:  // d_x
                d_x.noalias() = d_gate * gate;
                d_x.noalias() += d_up * up;
                break;
            case 2:
                Result(d_gate_.data() + at, w, h).noalias() = d_gate.transpose() * x;
                break;
            case 3:
                Result(d_up_.data() + at, w, h).noalias() = d_up.transpose() * x;
                break;
            default:
                Result(d_down_.data() + at, h, w).noalias() = d_y.transpose() * d_gate;
        }
    });
}

}  // namespace mok::cli
