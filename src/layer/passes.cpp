#include "layer/check.h"
#include "layer/engine.h"

// The passes as numbered stories (docs/design.md sections 5 and 6), the same for every engine.
// Ranks meet at two barriers, before and after the program; no task waits for another rank.
namespace mok {
namespace {

using Holds = Context::Impl::Holds;
using plan::PassKind;

void run_forward(Workspace::Impl& w, const Schedule::Impl& s, const Weights& weights,
                 const Inputs& in, const Tensor& out, Context::Impl* context) {
    layer::check_schedule(w, s);
    layer::check_weights(w, weights);
    layer::check_inputs(w, s.num_tokens, in);
    layer::check_output(w, s.num_tokens, out);
    layer::Engine& engine = *w.engine;
    const layer::PassArguments a{PassKind::Forward, s, weights, in, {}, out, {}, {}, context};
    const layer::PassScope pass(engine, a);
    if (context != nullptr) layer::reserve_activations(w, s, *context);

    // 1. Publish x and the router weights.
    engine.publish_inputs(a);
    engine.barrier_before();
    // 2. The route table is the schedule's. 3. Bind the pass to this rank's memory.
    // 4..7. DispatchX, GateUp, Down, CombineY.
    engine.run_program(a);
    // 8. Every y is home.
    engine.barrier_after();
    // 9. Weigh and add.
    engine.reduce_output(a);
    if (context != nullptr) context->holds = Holds::Activations;
}

// The backward passes: what is published, the program, and what comes home.
void run_backward(PassKind kind, Workspace::Impl& w, const Schedule::Impl& s,
                  const Weights& weights, const Inputs& in, const ConstTensor& d_out,
                  Context::Impl& context, const InputGrads& input_grads,
                  const WeightGrads& weight_grads) {
    layer::Engine& engine = *w.engine;
    layer::check_schedule(w, s);
    layer::check_weights(w, weights);
    layer::check_inputs(w, s.num_tokens, in);
    layer::check_rows(w, s.num_tokens, "d_out", d_out);
    layer::check_input_grads(w, s.num_tokens, input_grads);
    layer::check_weight_grads(w, weight_grads);
    layer::check_context(w, s, context,
                         kind == PassKind::Wgrad ? Holds::Operands : Holds::Activations);
    const layer::PassArguments a{kind, s,           weights,      in,      d_out,
                                 {},   input_grads, weight_grads, &context};
    const layer::PassScope pass(engine, a);
    if (kind == PassKind::BackwardInput) layer::reserve_operands(w, context);

    // 1. Publish x, d_y and the router weights.
    engine.publish_inputs(a);
    engine.publish_d_out(a);
    engine.barrier_before();
    // 2, 3. The forward's route table; the pass over this rank's memory.
    // 4..7. DispatchDY and DispatchX, Replay, DownDgrad, GateUpDgrad, CombineDX, weight gradients.
    engine.run_program(a);
    // 8. Every d_x is home.
    engine.barrier_after();
    // 9. Add the choices.
    if (kind != PassKind::Wgrad) engine.reduce_input_grads(a);
    if (kind == PassKind::BackwardInput) context.holds = Holds::Operands;
}

}  // namespace

Context::Context() : impl_(std::make_unique<Impl>()) {}
Context::Context(Block block) : Context() {
    impl_->block = block;
}
Context Context::restored(const Workspace& workspace, const Schedule& schedule, Block block) {
    layer::check_schedule(workspace.impl(), schedule.impl());
    Context context(block);
    layer::restore_activations(workspace.impl(), schedule.impl(), *context.impl_);
    return context;
}
Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;
int64_t Context::bytes() const {
    return impl_->saved.bytes() + impl_->operands.bytes();
}

void forward(Workspace& w, const Schedule& s, const Weights& weights, const Inputs& inputs,
             Tensor out) {
    run_forward(w.impl(), s.impl(), weights, inputs, out, nullptr);
}

void forward(Workspace& w, const Schedule& s, const Weights& weights, const Inputs& inputs,
             Tensor out, Context& context) {
    run_forward(w.impl(), s.impl(), weights, inputs, out, &context.impl());
}

void recompute(Workspace& workspace, const Schedule& schedule, const Weights& weights,
               const Inputs& in, Context& context) {
    Workspace::Impl& w = workspace.impl();
    const Schedule::Impl& s = schedule.impl();
    layer::check_schedule(w, s);
    layer::check_weights(w, weights);
    layer::check_inputs(w, s.num_tokens, in);
    layer::Engine& engine = *w.engine;
    const layer::PassArguments a{PassKind::Recompute, s, weights, in, {}, {}, {}, {},
                                 &context.impl()};
    const layer::PassScope pass(engine, a);
    layer::reserve_activations(w, s, context.impl());

    engine.publish_inputs(a);
    engine.barrier_before();
    engine.run_program(a);
    engine.barrier_after();
    context.impl().holds = Holds::Activations;
}

void backward(Workspace& w, const Schedule& s, const Weights& weights, const Inputs& inputs,
              ConstTensor d_out, Context& context, const InputGrads& input_grads,
              const WeightGrads& weight_grads) {
    run_backward(PassKind::Backward, w.impl(), s.impl(), weights, inputs, d_out, context.impl(),
                 input_grads, weight_grads);
}

void backward_input(Workspace& w, const Schedule& s, const Weights& weights, const Inputs& inputs,
                    ConstTensor d_out, Context& context, const InputGrads& input_grads) {
    run_backward(PassKind::BackwardInput, w.impl(), s.impl(), weights, inputs, d_out,
                 context.impl(), input_grads, {});
}

void wgrad(Workspace& w, const Schedule& s, const Weights& weights, const Inputs& inputs,
           ConstTensor d_out, Context& context, const WeightGrads& grads) {
    run_backward(PassKind::Wgrad, w.impl(), s.impl(), weights, inputs, d_out, context.impl(), {},
                 grads);
}

void shared_wgrad(Workspace& workspace, const Schedule& schedule, const Inputs& in,
                  ConstTensor d_out, Context& context, const WeightGrads& grads) {
    Workspace::Impl& w = workspace.impl();
    const Schedule::Impl& s = schedule.impl();
    layer::check_schedule(w, s);
    layer::check_inputs(w, s.num_tokens, in);
    layer::check_rows(w, s.num_tokens, "d_out", d_out);
    layer::check_weight_grads(w, grads);
    layer::check_context(w, s, context.impl(), Holds::Operands);
    if (w.shape.shared_intermediate == 0) {
        throw ShapeError("shared_wgrad: expected a layer with a shared expert, found none");
    }
    layer::Engine& engine = *w.engine;
    const layer::PassArguments a{PassKind::Wgrad, s, {}, in, d_out, {}, {}, grads, &context.impl()};
    const layer::PassScope pass(engine, a);

    engine.publish_inputs(a);
    engine.publish_d_out(a);
    engine.run_shared_wgrad(a);
}

}  // namespace mok
