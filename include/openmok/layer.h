#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "openmok/error.h"
#include "openmok/fp8_weights.h"
#include "openmok/group.h"
#include "openmok/operands.h"
#include "openmok/shape.h"
#include "openmok/tensor.h"

// A mixture-of-experts layer in training. T: this rank's tokens in the call (0 is allowed; other
// ranks may have other counts); E_l: this rank's experts; the other letters are LayerShape's.
// Floating tensors are BF16 or F32; F32 inputs are rounded once to BF16 where they enter the layer,
// router weights excepted, which stay F32. Ids are I32 or I64, -1: this choice goes to no expert.
//
// The equations (per token, w_c the router weight of choice c):
//     gate = x Wg^T + bg,  up = x Wu^T + bu,  hidden = activate(gate, up),  y = hidden Wd^T + bd
//     out = s * shared(x) + sum over choices c of w_c * y_c
// In a layer of FP8 (LayerShape::precision) the routed experts' operands are quantised, see
// docs/precision.md; their weights come by Weights::fp8.
// Bits: see docs/determinism.md. All calls but those of Context and Fp8Weights are collective.
//
// On a CUDA group the tensors of a call lie on the group's device. A call enqueues its work on the
// workspace's stream and returns: its inputs may be freed in the order of that stream right after
// it, and what goes wrong on the device is thrown by synchronize(). With one rank, or with ranks in
// processes of their own, calls may be captured into a graph, whose replays read the tensors'
// contents anew; the Schedule, Context and tensors of a captured call must outlive the graph.
namespace mok {

// Memory that every layer of one shape shares: published tensors, the ring, signals. Collective:
// all ranks pass the same arguments, otherwise ShapeError on every rank. Calls on one workspace are
// made one after the other, in the same order on all ranks.
class Workspace {
  public:
    Workspace(Group group, const LayerShape& shape, const Tuning& tuning, int64_t max_tokens);
    ~Workspace();
    Workspace(Workspace&&) noexcept;
    Workspace& operator=(Workspace&&) noexcept;

    int64_t bytes() const;
    int first_expert() const;
    int num_local_experts() const;
    // Bytes of a Block for a schedule and for a context of num_tokens tokens of this rank,
    // 0..max_tokens, whatever the routing.
    int64_t schedule_bytes(int64_t num_tokens) const;
    int64_t context_bytes(int64_t num_tokens) const;

    // CUDA: the stream (a cudaStream_t) of the calls from now on; at first the default stream.
    // Earlier calls on another stream are waited for there.
    void set_stream(void* cuda_stream);

    struct Impl;
    Impl& impl() const { return *impl_; }

  private:
    std::unique_ptr<Impl> impl_;
};

// Waits until the calls so far are done. CUDA: throws the TimeoutError of a wait inside a pass that
// expired (the group is then broken, the CUDA context stays usable) or of a kernel that did not end
// (docs/design.md section 13: nothing runs on its GPU any more), and the ShapeError of an id that a
// Schedule was made of; the calls of such a schedule have written nothing but unspecified values
// into their outputs.
void synchronize(Workspace& workspace);

// Memory of the caller's where the group computes, aligned to 16 bytes, that a Schedule or Context
// shall lie in: it outlives the handle. Its contents may be moved between two calls: a handle that
// is made of the copy (`restored`) goes on where the first one was, to the same bits.
struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
};

// Where every route of one call goes. Serves the forward, recompute and backward of that call on
// its workspace; another workspace refuses it with ShapeError.
class Schedule {
  public:
    // topk_ids [T, K]. An id outside [-1, E) is a ShapeError on every rank that names rank, token
    // and choice (CUDA: thrown by synchronize). Collective.
    Schedule(Workspace& workspace, ConstTensor topk_ids);
    // The same in memory of the caller's. tokens_per_expert, [E_l] I32 where the group computes,
    // is optional: the rows of each local expert, written there in the order of the call's work.
    Schedule(Workspace& workspace, ConstTensor topk_ids, Block block,
             Tensor tokens_per_expert = {});
    // One whose block, or a copy of it, is there: nothing is built and no rank waited for. Of the
    // same num_tokens, and of the workspace or one of the same group, shape and tuning.
    static Schedule restored(Workspace& workspace, int64_t num_tokens, Block block);
    ~Schedule();
    Schedule(Schedule&&) noexcept;
    Schedule& operator=(Schedule&&) noexcept;

    // Rows of each local expert, [E_l]. CUDA: synchronizes.
    std::span<const int32_t> tokens_per_expert() const;
    // The same where the group computes, without waiting: [E_l, 1] I32, with a stride.
    ConstTensor tokens_per_expert_device() const;

    struct Impl;
    Impl& impl() const { return *impl_; }

  private:
    Schedule(Workspace& workspace, int64_t num_tokens, Block block);
    std::unique_ptr<Impl> impl_;
};

// What a forward or recompute leaves for the backward, which takes it with the same schedule only
// (otherwise ShapeError). Any number may be in flight on one workspace.
class Context {
  public:
    Context();
    // One for a forward or recompute that shall fill memory of the caller's.
    explicit Context(Block block);
    // One whose block, or a copy of it, a forward or recompute of the schedule's ids has filled.
    static Context restored(const Workspace& workspace, const Schedule& schedule, Block block);
    ~Context();
    Context(Context&&) noexcept;
    Context& operator=(Context&&) noexcept;

    int64_t bytes() const;

    struct Impl;
    Impl& impl() const { return *impl_; }

  private:
    std::unique_ptr<Impl> impl_;
};

// out [T, H], BF16 or F32. Without a context nothing is kept (inference).
void forward(Workspace&, const Schedule&, const Weights&, const Inputs&, Tensor out);
void forward(Workspace&, const Schedule&, const Weights&, const Inputs&, Tensor out, Context&);

// Makes the context again from the inputs alone (activation checkpointing): the same bits.
void recompute(Workspace&, const Schedule&, const Weights&, const Inputs&, Context&);

// d_out [T, H]. inputs are the forward's.
void backward(Workspace&, const Schedule&, const Weights&, const Inputs&, ConstTensor d_out,
              Context&, const InputGrads&, const WeightGrads&);

// The same in two calls, for pipeline schedules: the input gradients now, the weight gradients
// later from the context, with the same inputs. The same bits as backward.
void backward_input(Workspace&, const Schedule&, const Weights&, const Inputs&, ConstTensor d_out,
                    Context&, const InputGrads&);
void wgrad(Workspace&, const Schedule&, const Weights&, const Inputs&, ConstTensor d_out, Context&,
           const WeightGrads&);

// The shared expert's weight gradients alone, after backward_input. Not collective.
void shared_wgrad(Workspace&, const Schedule&, const Inputs&, ConstTensor d_out, Context&,
                  const WeightGrads&);

}  // namespace mok
