#include "layer/cuda_check.h"
#include "layer/cuda_engine.h"

// What the engine does for a layer in FP8 alone.
namespace mok::layer {

void CudaEngine::quantize_weights(const Weights& w, std::byte* to) {
    const DeviceScope current(device_);
    require_usable();
    if (plan::num_local_experts(setup_.problem) == 0) return;
    const plan::Fp8WeightsMap& map = setup_.fp8_weights_map;
    const auto quantise = [&](const char* name, const ConstTensor& t,
                              const plan::Fp8MatrixMap& by_rows,
                              const plan::Fp8MatrixMap& by_columns) {
        places_.require(name, t);
        const kernels::QuantiseWeights params{t.data,
                                              t.dtype,
                                              t.shape[0],
                                              t.shape[1],
                                              t.shape[2],
                                              t.stride[0],
                                              t.stride[1],
                                              setup_.problem.precision,
                                              by_rows,
                                              by_columns,
                                              reinterpret_cast<uint8_t*>(to)};
        check_cuda(kernels::launch_quantise_weights(params, stream_), "quantising weights");
    };
    quantise("gate", w.gate, map.gate, map.gate_t);
    quantise("up", w.up, map.up, map.up_t);
    quantise("down", w.down, map.down, map.down_t);
}

// BF16 numbers of both orientations; none where tensor cores have block scales.
int64_t CudaEngine::fp8_operand_bytes() const {
    return has_block_scales_ ? 0 : plan::mxfp8_operands_map(setup_.problem).total;
}

void CudaEngine::make_fp8_operands(const std::byte* weights, std::byte* operands) {
    const plan::Problem& p = setup_.problem;
    if (p.precision != Precision::Mxfp8 || has_block_scales_) return;
    const DeviceScope current(device_);
    require_usable();
    const plan::Fp8WeightsMap& map = setup_.fp8_weights_map;
    const plan::Mxfp8OperandsMap to = plan::mxfp8_operands_map(p);
    const int64_t experts = plan::num_local_experts(p), h = p.hidden, i = p.intermediate;
    const auto dequantise = [&](const plan::Fp8MatrixMap& from, bool is_transposed, int64_t rows,
                                int64_t cols, int64_t at) {
        const kernels::DequantiseWeights params{
            reinterpret_cast<const uint8_t*>(weights), from, is_transposed, experts, rows, cols,
            reinterpret_cast<Bf16*>(operands + at)};
        check_cuda(kernels::launch_dequantise_weights(params, stream_), "dequantising weights");
    };
    dequantise(map.gate, false, i, h, to.forward.gate);
    dequantise(map.up, false, i, h, to.forward.up);
    dequantise(map.down, false, h, i, to.forward.down);
    dequantise(map.gate_t, true, i, h, to.input_grads.gate);
    dequantise(map.up_t, true, i, h, to.input_grads.up);
    dequantise(map.down_t, true, h, i, to.input_grads.down);
}

void CudaEngine::launch_fp8_forward(const PassArguments& a) {
    if (setup_.shape.shared_intermediate > 0) {
        launch_forward(a, no_routes());
        clear(Clears::SignalsAndTickets);
    }
    if (setup_.problem.precision == Precision::Mxfp8 && has_block_scales_) {
        launch_routed(bind_block_scaled_forward(memory(), a, tensors_),
                      kernels::launch_block_scaled_forward, "the block-scaled forward kernel");
    } else if (setup_.problem.precision == Precision::Mxfp8) {
        launch_routed(bind_mxfp8_forward(memory(), a, tensors_), kernels::launch_mxfp8_forward,
                      "the MXFP8 forward kernel");
    } else {
        launch_routed(bind_fp8_forward(memory(), a, tensors_), kernels::launch_fp8_forward,
                      "the FP8 forward kernel");
    }
}

void CudaEngine::launch_fp8_backward(const PassArguments& a) {
    if (setup_.shape.shared_intermediate > 0) {
        launch_backward(a, no_routes());
        clear(Clears::SignalsAndTickets);
    }
    if (setup_.problem.precision == Precision::Mxfp8 && has_block_scales_) {
        launch_routed(bind_block_scaled_backward(memory(), a, tensors_),
                      kernels::launch_block_scaled_backward, "the block-scaled backward kernel");
    } else if (setup_.problem.precision == Precision::Mxfp8) {
        launch_routed(bind_mxfp8_backward(memory(), a, tensors_), kernels::launch_mxfp8_backward,
                      "the MXFP8 backward kernel");
    } else {
        launch_routed(bind_fp8_backward(memory(), a, tensors_), kernels::launch_fp8_backward,
                      "the FP8 backward kernel");
    }
}

template <class Launch, class Kernel>
void CudaEngine::launch_routed(Launch&& launch, Kernel&& kernel, const char* name) {
    diagnostics_->apply(launch.params);
    check_cuda(kernel(launch.params, launch.maps, num_sms_, stream_), name);
    diagnostics_->count_rows(launch.params.pass, stream_);
}

}  // namespace mok::layer
