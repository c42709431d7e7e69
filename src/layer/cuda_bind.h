#pragma once

#include "kernels/backward.h"
#include "kernels/block_scaled_backward.h"
#include "kernels/block_scaled_forward.h"
#include "kernels/forward.h"
#include "kernels/fp8_backward.h"
#include "kernels/fp8_forward.h"
#include "kernels/mxfp8_passes.h"
#include "kernels/quantise.h"
#include "kernels/table_builder.h"
#include "layer/cuda_peers.h"
#include "layer/cuda_publish.h"
#include "layer/engine.h"

namespace mok::layer {

// What every pass finds zero at its start, behind the signals of the workspace.
struct PassControl {
    uint32_t tickets[kernels::kNumTickets];
    uint32_t aborted;
    uint32_t num_traced;
    kernels::PassTimes times;
};
static_assert(sizeof(PassControl) == plan::kPassControlBytes);
inline int64_t control_offset(const plan::WorkspaceMap& map) {
    return map.total;
}
inline int64_t local_bytes(const plan::WorkspaceMap& map) {
    return map.total + static_cast<int64_t>(sizeof(PassControl));
}

// The tensors of a call as the kernels read them.
struct CallTensors {
    const Bf16 *x, *d_y;        // [T, H] of this rank; d_y: of a backward
    const float* topk_weights;  // [T, K] of this rank; of a backward
    arch::MatrixStack gate, up, down, shared_gate, shared_up, shared_down;
    kernels::Biases biases;
};

// The memory of a rank that a pass works in.
struct PassMemory {
    const Setup& setup;
    const Memory& local;
    const CudaPeers& peers;
    kernels::FaultRecord* fault;
    int num_sms;           // that the pass may use
    std::byte* fp8_slots;  // plan::fp8_slots_map
};

// All that a forward needs, from the plan's maps: see kernels/forward_params.h. What only the
// diagnostics set stays zero.
struct ForwardLaunch {
    kernels::ForwardParams params;
    kernels::ExpertMaps routed, shared;
};
ForwardLaunch bind_forward(const PassMemory& m, const PassArguments& a, const CallTensors& t);
// Of a layer in Fp8Block: the routed part of a forward.
struct Fp8ForwardLaunch {
    kernels::Fp8ForwardParams params;
    kernels::Fp8ExpertMaps maps;
};
Fp8ForwardLaunch bind_fp8_forward(const PassMemory& m, const PassArguments& a,
                                  const CallTensors& t);
// Of a layer in Fp8Block: the routed part of a backward.
struct Fp8BackwardLaunch {
    kernels::Fp8BackwardParams params;
    kernels::Fp8BackwardMaps maps;
};
Fp8BackwardLaunch bind_fp8_backward(const PassMemory& m, const PassArguments& a,
                                    const CallTensors& t);
// Of a layer in Mxfp8: the routed parts of the passes.
struct Mxfp8ForwardLaunch {
    kernels::Mxfp8ForwardParams params;
    kernels::ExpertMaps maps;
};
Mxfp8ForwardLaunch bind_mxfp8_forward(const PassMemory& m, const PassArguments& a,
                                      const CallTensors& t);
// The same on a GPU whose tensor cores have block scales.
struct BlockScaledForwardLaunch {
    kernels::BlockScaledForwardParams params;
    kernels::BlockScaledExpertMaps maps;
};
BlockScaledForwardLaunch bind_block_scaled_forward(const PassMemory& m, const PassArguments& a,
                                                   const CallTensors& t);
struct BlockScaledBackwardLaunch {
    kernels::Mxfp8BackwardParams params;
    kernels::BlockScaledBackwardMaps maps;
};
BlockScaledBackwardLaunch bind_block_scaled_backward(const PassMemory& m, const PassArguments& a,
                                                     const CallTensors& t);
struct Mxfp8BackwardLaunch {
    kernels::Mxfp8BackwardParams params;
    kernels::Mxfp8BackwardMaps maps;
};
Mxfp8BackwardLaunch bind_mxfp8_backward(const PassMemory& m, const PassArguments& a,
                                        const CallTensors& t);
// x into the window in FP8, of either recipe.
kernels::QuantiseRows bind_quantise_x(const PassMemory& m, const CallTensors& t,
                                      int64_t num_tokens);
// The same of the backward passes.
struct BackwardLaunch {
    kernels::BackwardParams params;
    kernels::BackwardMaps routed, shared;
};
BackwardLaunch bind_backward(const PassMemory& m, const PassArguments& a, const CallTensors& t);
kernels::ReduceGradsParams bind_reduce_grads(const PassMemory& m, const PassArguments& a);

// What the kernels of every pass share.
void bind_pass(kernels::PassParams& params, const PassMemory& m, const PassArguments& a);

kernels::ReduceParams bind_reduce(const PassMemory& m, const PassArguments& a);

}  // namespace mok::layer
