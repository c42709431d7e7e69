#pragma once

#include "device_case.h"
#include "kernels/backward.h"

// One backward of a random case on one GPU by any number of virtual ranks, for the GPU tests: the
// forward's context stays on the device, all other memory becomes NaN between the two.
namespace mok_test {

struct BackwardOptions {
    DeviceOptions device;
    bool split = false;       // BackwardInput, then Wgrad
    bool recompute = false;   // the context is thrown away and made again
    bool bf16_grads = false;  // of the weights, else FP32
    bool f32_d_x = false;
    mok::GradMode mode = mok::GradMode::Overwrite;
    float old_gradient = 0.0f;  // what the weights' gradients hold before; NaN where Overwrite
};

struct BackwardRank {
    mok::kernels::BackwardParams params;
    mok::kernels::BackwardMaps routed, shared;
    mok::kernels::ReduceGradsParams reduce;
    DeviceMemory gate, up, down, gate_bias, up_bias, down_bias;
    DeviceMemory d_x, d_topk_weights, d_shared_weights, control;
};

class BackwardCase {
  public:
    BackwardCase(const mok::cli::RandomCase& c, const BackwardOptions& options);
    // The forward, then as run_backward. Ends the program with a sentence where a rank faults.
    void run();
    // The backward of all ranks on a stream, from the context: clears signals, runs every rank's
    // program or both halves, reduces.
    void run_backward(cudaStream_t stream);
    void run_pass(mok::plan::PassKind kind, cudaStream_t stream);
    // Everything that came out, BF16 widened.
    mok::cli::GlobalResult result() const;

    DeviceCase device;
    std::vector<BackwardRank> ranks;

  private:
    void bind(int rank);
    void keep_x(int rank);
    DeviceMemory gradient(int64_t elements) const;
    std::vector<float> floats(const DeviceMemory& memory, int64_t elements, bool bf16) const;

    const mok::cli::RandomCase& case_;
    BackwardOptions options_;
    DeviceMemory d_shared_gate_, d_shared_up_, d_shared_down_;  // of all ranks, one after the other
};

}  // namespace mok_test
