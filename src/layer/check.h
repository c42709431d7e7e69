#pragma once

#include "layer/state.h"

namespace mok::layer {

// Every rule on the tensors of a call. Each check throws ShapeError with one sentence (which
// tensor, expected, found) before anything is published or written.
void check_num_tokens(const Workspace::Impl& w, int64_t num_tokens);  // 0..max_tokens
void check_ids(const Workspace::Impl& w, const ConstTensor& topk_ids);
void check_tokens_per_expert(const Workspace::Impl& w, const Tensor& rows);  // may be absent
void check_weights(const Workspace::Impl& w, const Weights& weights);
void check_inputs(const Workspace::Impl& w, int64_t num_tokens, const Inputs& inputs);
void check_rows(const Workspace::Impl& w, int64_t num_tokens, const char* name,
                const ConstTensor& rows);  // [T, H] BF16 or F32
void check_output(const Workspace::Impl& w, int64_t num_tokens,
                  const Tensor& out);  // [T, H] BF16 or F32
void check_input_grads(const Workspace::Impl& w, int64_t num_tokens, const InputGrads& grads);
void check_weight_grads(const Workspace::Impl& w, const WeightGrads& grads);

// FP8 weights must be of the workspace's precision, experts and widths; what they are made of must
// be there.
void check_same_experts(const Workspace::Impl& w, const Fp8Weights& weights);
void check_quantizable(const Workspace::Impl& w, const Weights& weights);

// A schedule must be one of the call's workspace.
void check_schedule(const Workspace::Impl& w, const Schedule::Impl& s);

// A context must hold what a call reads, and be one that the schedule filled.
void check_context(const Workspace::Impl& w, const Schedule::Impl& s, const Context::Impl& context,
                   Context::Impl::Holds least);

}  // namespace mok::layer
