#pragma once

#include <memory>
#include <vector>

#include "layer/state.h"
#include "plan/pass.h"

namespace mok::layer {

// What the calls of a pass work on.
struct PassArguments {
    plan::PassKind kind;
    const Schedule::Impl& schedule;
    const Weights& weights;
    const Inputs& inputs;
    ConstTensor d_out;                // absent in forward passes
    Tensor out;                       // of a forward
    const InputGrads& input_grads;    // of a backward
    const WeightGrads& weight_grads;  // of a pass with weight gradients
    Context::Impl* context;           // none: a forward that keeps nothing
};

// What differs between the backends. src/layer/passes.cpp and schedule.cpp call these in the order
// in which they stand here; the calls of one workspace come one after the other.
class Engine {
  public:
    virtual ~Engine() = default;

    // ---- Schedule ---------------------------------------------------------------------------
    // Publishes this rank's checked ids, meets the other ranks and builds the route table of
    // s.num_tokens tokens into memory of the schedule's own. expert_rows [E_l]: also the rows of
    // each local expert, where it is not null.
    virtual void build_schedule(Schedule::Impl& s, const ConstTensor& topk_ids,
                                int32_t* expert_rows) = 0;
    // Finds what build_schedule has left in memory of the schedule's.
    virtual void restore_schedule(Schedule::Impl& s) = 0;
    virtual std::span<const int32_t> tokens_per_expert(Schedule::Impl& s) = 0;

    // ---- FP8 weights --------------------------------------------------------------------------
    // Checked weights into the memory of this engine, by setup.fp8_weights_map.
    virtual void quantize_weights(const Weights& weights, std::byte* to) = 0;
    // What passes multiply with where that is not the FP8 bytes themselves: memory beside them,
    // made of them whenever they have changed.
    virtual int64_t fp8_operand_bytes() const { return 0; }
    virtual void make_fp8_operands(const std::byte* /*weights*/, std::byte* /*operands*/) {}

    // ---- A pass -----------------------------------------------------------------------------
    // Throws, before anything is written, for tensors that the backend cannot take, for a broken
    // group, and for a pass that the backend does not have.
    virtual void begin_pass(const PassArguments& a) = 0;
    // Slots whose rows a context of this call keeps.
    virtual int64_t kept_rows(const Schedule::Impl& s) const = 0;
    // A block for a context, at least one byte.
    virtual Memory allocate(int64_t bytes) = 0;
    // 1. This rank's tensors where its peers read them, F32 rounded to BF16; router weights stay
    // F32.
    virtual void publish_inputs(const PassArguments& a) = 0;
    virtual void publish_d_out(const PassArguments& a) = 0;
    virtual void barrier_before() = 0;
    // 4..7. Runs the pass's program.
    virtual void run_program(const PassArguments& a) = 0;
    // The shared expert's weight gradients alone.
    virtual void run_shared_wgrad(const PassArguments& a) = 0;
    virtual void barrier_after() = 0;
    // 9. What a home rank makes of the rows that came home.
    virtual void reduce_output(const PassArguments& a) = 0;
    virtual void reduce_input_grads(const PassArguments& a) = 0;
    virtual void end_pass() = 0;

    // ---- Between calls ----------------------------------------------------------------------
    virtual int64_t bytes() const = 0;
    virtual void set_stream(void* stream) = 0;
    virtual void synchronize() = 0;
    virtual void poison() = 0;
    virtual void set_diagnostics(const Diagnostics& diagnostics) = 0;
    virtual LinkBytes link_bytes() = 0;
    virtual std::vector<TracedTask> trace() = 0;
    virtual PassTimes pass_times() = 0;
};

// The engine of a group's device. Collective.
std::shared_ptr<Engine> make_engine(const Setup& setup);
std::shared_ptr<Engine> make_cpu_engine(const Setup& setup);
// Throws Error in a build without CUDA.
std::shared_ptr<Engine> make_cuda_engine(const Setup& setup);

// A caller's block as memory. ShapeError where `what` (its name) is too small or not aligned.
Memory caller_memory(const char* what, const Block& block, int64_t bytes);

// Sizes a context for a forward's part; for the operands of the weight gradients. A block that is
// large enough and lies on the engine's device is kept. A context of the caller's block takes that.
void reserve_activations(const Workspace::Impl& w, const Schedule::Impl& s, Context::Impl& c);
// A context that a forward of this schedule has left in the block.
void restore_activations(const Workspace::Impl& w, const Schedule::Impl& s, Context::Impl& c);
void reserve_operands(const Workspace::Impl& w, Context::Impl& c);

// The story of one call; an exception ends the call too.
class PassScope {
  public:
    PassScope(Engine& engine, const PassArguments& a) : engine_(engine) { engine.begin_pass(a); }
    ~PassScope() { engine_.end_pass(); }
    PassScope(const PassScope&) = delete;
    PassScope& operator=(const PassScope&) = delete;

  private:
    Engine& engine_;
};

}  // namespace mok::layer
