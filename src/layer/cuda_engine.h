#pragma once

#include <cuda_runtime_api.h>

#include <optional>

#include "layer/cuda_bind.h"
#include "layer/cuda_check.h"
#include "layer/cuda_diagnostics.h"
#include "layer/cuda_faults.h"
#include "layer/cuda_memory.h"
#include "layer/cuda_wait.h"

namespace mok::layer {

// The layer on one GPU: every call enqueues its kernels on the workspace's stream.
class CudaEngine final : public Engine {
  public:
    explicit CudaEngine(const Setup& setup);
    ~CudaEngine() override;

    void build_schedule(Schedule::Impl& s, const ConstTensor& topk_ids,
                        int32_t* expert_rows) override;
    void restore_schedule(Schedule::Impl& s) override;
    std::span<const int32_t> tokens_per_expert(Schedule::Impl& s) override;

    void quantize_weights(const Weights& weights, std::byte* to) override;
    int64_t fp8_operand_bytes() const override;
    void make_fp8_operands(const std::byte* weights, std::byte* operands) override;

    void begin_pass(const PassArguments& a) override;
    // Of the most slots that so many tokens could have: the device's own count is not read.
    int64_t kept_rows(const Schedule::Impl& s) const override;
    Memory allocate(int64_t bytes) override;
    void publish_inputs(const PassArguments& a) override;
    void publish_d_out(const PassArguments& a) override;
    void barrier_before() override;
    void run_program(const PassArguments& a) override;
    void run_shared_wgrad(const PassArguments& a) override;
    void barrier_after() override { peers_->meet(stream_, "barrier after a pass"); }
    void reduce_output(const PassArguments& a) override;
    void reduce_input_grads(const PassArguments& a) override;
    void end_pass() override;

    int64_t bytes() const override;
    void set_stream(void* stream) override;
    void synchronize() override;
    void poison() override;
    void set_diagnostics(const Diagnostics& diagnostics) override;
    LinkBytes link_bytes() override;
    std::vector<TracedTask> trace() override;
    PassTimes pass_times() override;

  private:
    void find_table(Schedule::Impl& s) const;
    void throw_if_broken();
    void wait() { wait_for_rank(stream_, faults_, *peers_); }
    // Throws for what makes any call impossible: a broken group, a stream that is captured where
    // the ranks cannot meet.
    void require_usable();
    // [T, H] where this rank's kernels read them: in the window at `offset`, or where they lie if
    // no peer reads them.
    const Bf16* publish_rows(const ConstTensor& rows, int64_t offset);
    const float* publish_topk_weights(const ConstTensor& weights);
    void launch_pass(const PassArguments& a);
    void launch_forward(const PassArguments& a, const plan::RouteTable& table);
    // The shared expert's part in BF16, then the routed experts' in FP8.
    void launch_fp8_forward(const PassArguments& a);
    void launch_fp8_backward(const PassArguments& a);
    template <class Launch, class Kernel>
    void launch_routed(Launch&& launch, Kernel&& kernel, const char* name);
    void launch_backward(const PassArguments& a, const plan::RouteTable& table);
    // Clears signals and tickets; and where a pass begins, all of PassControl.
    enum class Clears { Pass, SignalsAndTickets };
    void clear(Clears what);
    // A table without slots.
    plan::RouteTable no_routes() const;
    PassMemory memory();
    PassControl read_control();

    const Setup setup_;
    int device_;
    PlaceCheck places_;
    int num_sms_ = 0;
    bool has_block_scales_ = false;  // the GPU's tensor cores
    std::shared_ptr<DevicePool> pool_;
    std::unique_ptr<CudaPeers> peers_;
    Memory local_;          // plan::WorkspaceMap, then PassControl
    Memory table_scratch_;  // kernels::table_scratch_bytes
    Memory fp8_slots_;      // plan::fp8_slots_map
    Memory no_routes_;      // a route table's arrays, all zero
    Memory id_pointers_;    // [2 turns][ids, num_tokens][R] pointers
    CudaFaults faults_{setup_};
    std::optional<CudaDiagnostics> diagnostics_;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t stream_changed_ = nullptr;
    uint64_t num_schedules_ = 0;

    // Of the pass that is being enqueued.
    std::optional<DeviceScope> current_;
    std::optional<CudaPublisher> publisher_;
    std::vector<Memory> captured_;  // copies that graphs read and write whenever they are replayed
    CallTensors tensors_{};
    kernels::QuantiseRows quantised_x_{};  // what barrier_before quantises; no rows: nothing
};

}  // namespace mok::layer
