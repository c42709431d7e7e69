#pragma once

#include <vector>

#include "cpu/rank_pass.h"
#include "layer/engine.h"

namespace mok::layer {

// The layer on threads of this process, by the executor of src/cpu.
class CpuEngine final : public Engine {
  public:
    explicit CpuEngine(const Setup& setup);

    void build_schedule(Schedule::Impl& s, const ConstTensor& topk_ids,
                        int32_t* expert_rows) override;
    void restore_schedule(Schedule::Impl& s) override;
    std::span<const int32_t> tokens_per_expert(Schedule::Impl& s) override;

    void quantize_weights(const Weights& weights, std::byte* to) override;

    void begin_pass(const PassArguments& a) override;
    int64_t kept_rows(const Schedule::Impl& s) const override;
    Memory allocate(int64_t bytes) override { return host_memory(bytes); }
    void publish_inputs(const PassArguments& a) override;
    void publish_d_out(const PassArguments& a) override;
    void barrier_before() override;
    void run_program(const PassArguments& a) override;
    void run_shared_wgrad(const PassArguments& a) override;
    void barrier_after() override;
    void reduce_output(const PassArguments& a) override;
    void reduce_input_grads(const PassArguments& a) override;
    void end_pass() override {}

    int64_t bytes() const override { return window_->bytes() + local_.bytes(); }
    void set_stream(void* stream) override;
    void synchronize() override;
    void poison() override;
    void set_diagnostics(const Diagnostics& diagnostics) override;
    LinkBytes link_bytes() override;
    std::vector<TracedTask> trace() override { return {}; }
    PassTimes pass_times() override { return {}; }

    // The pass over this rank's memory. publish_inputs must have been called for its inputs.
    cpu::RankPass make_pass(const PassArguments& a);

    const Memory& window() const { return *window_; }
    const Memory& local() const { return local_; }

  private:
    // Where the table and the ids lie in a schedule's memory; what a built table says.
    void find_table(Schedule::Impl& s) const;
    void count_tokens(Schedule::Impl& s) const;
    cpu::SharedMemory shared_memory(const PassArguments& a) const;

    const Setup setup_;
    int num_workers_;
    // This rank's, and what keeps its peers': a rank that a fault ends may leave while others read
    // its window.
    std::shared_ptr<Memory> window_;
    std::vector<std::shared_ptr<Memory>> all_windows_;
    std::vector<cpu::Window> windows_;
    Memory local_;
    std::vector<float> shared_weights_;  // [T], of the call: the caller's, or ones
    cpu::LinkCounters counters_{};
    uint64_t num_schedules_ = 0;
    Diagnostics diagnostics_;
};

}  // namespace mok::layer
