#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cli/bench/cuda_copy_beside.h"
#include "cli/bench/cuda_normals.h"
#include "cli/bench/timed_layer.h"
#include "cli/io/sha256.h"
#include "openmok/diagnostics.h"
#include "openmok/layer.h"

namespace mok::cli {

// Deviations of a rank timer's tensors.
inline constexpr double kInputDeviation = 1.0, kWeightDeviation = 0.02;

// One rank's layer and tensors on its GPU, timed over the public interface. x and d_out ~ N(0, 1),
// weights 0.02 N(0, 1), in FP8 quantised once; the output, d_x and the gradients of the weights
// (overwritten) are BF16. Calls are collective, each rank on a thread of its own.
class CudaRankTimer {
  public:
    // `normals` has both deviations.
    CudaRankTimer(const BenchCase& c, const Group& group, const CudaNormals& normals);
    ~CudaRankTimer();
    CudaRankTimer(const CudaRankTimer&) = delete;
    CudaRankTimer& operator=(const CudaRankTimer&) = delete;

    // Milliseconds between two events around one execution, begun on an idle device. Forwards: from
    // the ids to the output. A backward's forward is enqueued before the clock starts.
    double run_ms(BenchPass pass);
    double table_ms();
    // Kernels of one pass, counted in a graph that it is captured into; one rank only.
    int64_t launches(BenchPass pass);
    // Bytes that this rank exchanges with other ranks in one pass.
    int64_t link_bytes(BenchPass pass);
    // The tasks of one execution. More than the capacity is an Error.
    std::vector<TracedTask> trace(BenchPass pass);
    // What the last execution of a pass computed, tensor after tensor: the output; or d_x, d_w and
    // the gradients of gate, up and down.
    static int num_results(BenchPass pass) { return pass == BenchPass::Backward ? 5 : 1; }
    // The SHA-256 of every token of a result, of a gradient of weights: of every expert.
    std::vector<io::Sha256Digest> digests(BenchPass pass, int result) const;

    int64_t workspace_bytes() const { return workspace_.bytes(); }
    int64_t context_bytes() const { return context_.bytes(); }
    // Of the copies beside the executions of passes so far, ms; none where the case has none.
    std::vector<double> copy_times() const {
        return copy_ ? copy_->times() : std::vector<double>();
    }

  private:
    struct DeviceTensor {
        layer::Memory memory;
        int64_t bytes = 0;
        void* data() const { return memory.data(); }
    };
    DeviceTensor allocate(int64_t bytes) const;
    DeviceTensor normal(const CudaNormals& normals, const CudaNormals::Part& part,
                        double deviation) const;
    struct Result {
        const DeviceTensor* tensor;
        int64_t units;  // tokens or experts
    };
    std::vector<Result> results(BenchPass pass) const;
    void make_gradients(const BenchCase& c);
    void make_schedule();
    void enqueue(BenchPass pass);
    double timed_ms(const std::function<void()>& before, const std::function<void()>& work,
                    CopyBeside* copy = nullptr);

    Group group_;
    Workspace workspace_;
    std::optional<Schedule> schedule_;
    Context context_;
    std::optional<CopyBeside> copy_;
    std::optional<Fp8Weights> fp8_weights_;  // quantised once, as for an optimizer's step
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
    DeviceTensor x_, ids_, topk_weights_, gate_, up_, down_, out_, d_out_;
    DeviceTensor d_x_, d_topk_weights_, d_gate_, d_up_, d_down_;
    ConstTensor ids_view_, d_out_view_;
    Inputs inputs_;
    Weights weights_;
    Tensor out_view_;
    InputGrads input_grads_;
    WeightGrads weight_grads_;
};

}  // namespace mok::cli
