#include "comm/group_state.h"
#include "cpu/reduce.h"
#include "layer/check.h"
#include "layer/pass_runner.h"

// The passes as numbered stories (docs/design.md sections 5 and 6). Ranks meet at two barriers,
// before and after the program; no task waits for another rank.
namespace mok {
namespace {

using Holds = Context::Impl::Holds;
using plan::PassKind;

void barrier_a(Workspace::Impl& w) {
    w.group.state().barrier(w.problem.rank, "barrier before a pass");
}
void barrier_b(Workspace::Impl& w) {
    w.group.state().barrier(w.problem.rank, "barrier after a pass");
}

void run_forward(Workspace::Impl& w, const Schedule::Impl& s, const Weights& weights,
                 const Inputs& in, const Tensor& out, Context::Impl* context) {
    layer::check_schedule(w, s);
    layer::check_weights(w, weights);
    layer::check_inputs(w, s.num_tokens, in);
    layer::check_output(w, s.num_tokens, out);
    if (context != nullptr) layer::reserve_activations(w, s, *context);

    // 1. Publish x and the router weights.
    layer::publish_inputs(w, in);
    barrier_a(w);
    // 2. The route table is the schedule's. 3. Bind the pass to this rank's memory.
    const std::vector<float> shared_weights = layer::shared_weights_of(w, in);
    const cpu::RankPass pass =
        layer::make_pass(w, s, {PassKind::Forward, weights, {}, shared_weights, context});
    // 4..7. DispatchX, GateUp, Down, CombineY.
    layer::run_program(w, pass);
    // 8. Every y is home.
    barrier_b(w);
    // 9. Weigh and add.
    cpu::reduce_output(pass, s.ids.data(), out);
    if (context != nullptr) context->holds = Holds::Activations;
}

// The backward passes: what is published, the program, and what comes home.
void run_backward(PassKind kind, Workspace::Impl& w, const Schedule::Impl& s,
                  const Weights& weights, const Inputs& in, const ConstTensor& d_out,
                  Context::Impl& context, const InputGrads& input_grads,
                  const WeightGrads& weight_grads) {
    layer::check_schedule(w, s);
    layer::check_weights(w, weights);
    layer::check_inputs(w, s.num_tokens, in);
    layer::check_rows(w, s.num_tokens, "d_out", d_out);
    layer::check_input_grads(w, s.num_tokens, input_grads);
    layer::check_weight_grads(w, weight_grads);
    layer::check_context(s, context, layer::kept_rows(w, s),
                         kind == PassKind::Wgrad ? Holds::Operands : Holds::Activations);
    if (kind == PassKind::BackwardInput) layer::reserve_operands(w, context);

    // 1. Publish x, d_y and the router weights.
    layer::publish_inputs(w, in);
    layer::publish_d_out(w, d_out);
    barrier_a(w);
    // 2, 3. The forward's route table; the pass over this rank's memory.
    const std::vector<float> shared_weights = layer::shared_weights_of(w, in);
    const cpu::RankPass pass =
        layer::make_pass(w, s, {kind, weights, weight_grads, shared_weights, &context});
    // 4..7. DispatchDY and DispatchX, Replay, DownDgrad, GateUpDgrad, CombineDX, weight gradients.
    layer::run_program(w, pass);
    // 8. Every d_x is home.
    barrier_b(w);
    // 9. Add the choices.
    if (kind != PassKind::Wgrad) cpu::reduce_input_grads(pass, s.ids.data(), input_grads);
    if (kind == PassKind::BackwardInput) context.holds = Holds::Operands;
}

}  // namespace

Context::Context() : impl_(std::make_unique<Impl>()) {}
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
    layer::reserve_activations(w, s, context.impl());

    layer::publish_inputs(w, in);
    barrier_a(w);
    const std::vector<float> shared_weights = layer::shared_weights_of(w, in);
    const cpu::RankPass pass =
        layer::make_pass(w, s, {PassKind::Recompute, weights, {}, shared_weights, &context.impl()});
    layer::run_program(w, pass);
    barrier_b(w);
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
    layer::check_context(s, context.impl(), layer::kept_rows(w, s), Holds::Operands);
    if (w.shape.shared_intermediate == 0) {
        throw ShapeError("shared_wgrad: expected a layer with a shared expert, found none");
    }

    layer::publish_inputs(w, in);
    layer::publish_d_out(w, d_out);
    const std::vector<float> shared_weights = layer::shared_weights_of(w, in);
    const cpu::RankPass pass =
        layer::make_pass(w, s, {PassKind::Wgrad, {}, grads, shared_weights, &context.impl()});
    for (int64_t i = 0; i < plan::shared_wgrad_tasks(pass.pass); ++i) {
        cpu::run_task(pass, plan::decode(pass.pass, plan::Role::Compute, i));
    }
}

}  // namespace mok
