#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mok::cli {

// The matrix products of a layer by the library alone: Eigen's FP32 products of exactly the rows
// that each expert has, without tiles, padding, conversion, activation or exchange. What the CPU
// backend is measured against. All products are independent; threads claim them one by one, those
// of a thread being single-threaded.
class LibraryProducts {
  public:
    // With `backward` memory for the gradients as well.
    LibraryProducts(std::span<const int32_t> rows_per_expert, int64_t hidden, int64_t intermediate,
                    bool backward, int num_threads);

    double forward_ms();   // gate, up and down of every expert
    double backward_ms();  // d_hidden, d_x (two products), d_gate, d_up and d_down

  private:
    template <class Products>
    double timed_ms(int products_per_expert, Products&& products);

    std::vector<int64_t> first_row_;  // [E + 1]
    int64_t hidden_, intermediate_;
    int num_threads_;
    // No product reads what another one writes.
    std::vector<float> x_, d_y_;                  // [N, H]
    std::vector<float> d_gate_rows_, d_up_rows_;  // [N, I]; the first one is also hidden
    std::vector<float> gate_out_, up_out_;        // [N, I]
    std::vector<float> rows_out_;                 // [N, H]
    // Weights and their gradients as in openmok/layer.h.
    std::vector<float> w_gate_, w_up_, w_down_;
    std::vector<float> d_gate_, d_up_, d_down_;
};

}  // namespace mok::cli
