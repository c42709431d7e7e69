#pragma once

#include <vector>

#include "cpu/rank_pass.h"
#include "layer/state.h"

namespace mok::layer {

// What every pass is made of. A pass in src/layer/passes.cpp reads as a list of these calls.

// 1. This rank's tensors into its window, F32 rounded to BF16; router weights stay F32.
void publish_inputs(Workspace::Impl& w, const Inputs& inputs);
void publish_d_out(Workspace::Impl& w, const ConstTensor& d_out);

// The shared expert's weight of every token: the caller's, or ones.
std::vector<float> shared_weights_of(const Workspace::Impl& w, const Inputs& inputs);

// Slots whose rows a context of this call keeps.
int64_t kept_rows(const Workspace::Impl& w, const Schedule::Impl& s);

// Makes room in a context for a forward's part; for the operands of the weight gradients.
void reserve_activations(const Workspace::Impl& w, const Schedule::Impl& s, Context::Impl& c);
void reserve_operands(const Workspace::Impl& w, Context::Impl& c);

// 3. The pass over this rank's memory. A context may be none for a forward that keeps nothing.
struct PassArguments {
    plan::PassKind kind;
    const Weights& weights;
    const WeightGrads& grads;
    const std::vector<float>& shared_weights;
    const Context::Impl* context;
};
cpu::RankPass make_pass(Workspace::Impl& w, const Schedule::Impl& s,
                        const PassArguments& arguments);

// 4..7. Runs the pass's program. A fault breaks the group and is thrown as TimeoutError.
void run_program(Workspace::Impl& w, const cpu::RankPass& pass);

}  // namespace mok::layer
