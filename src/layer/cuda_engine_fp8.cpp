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
        const kernels::QuantiseWeights params{
            t.data,      t.dtype,     t.shape[0], t.shape[1], t.shape[2],
            t.stride[0], t.stride[1], by_rows,    by_columns, reinterpret_cast<uint8_t*>(to)};
        check_cuda(kernels::launch_quantise_weights(params, stream_), "quantising weights");
    };
    quantise("gate", w.gate, map.gate, map.gate_t);
    quantise("up", w.up, map.up, map.up_t);
    quantise("down", w.down, map.down, map.down_t);
}

void CudaEngine::launch_fp8_forward(const PassArguments& a) {
    if (setup_.shape.shared_intermediate > 0) {
        launch_forward(a, no_routes());
        clear(Clears::SignalsAndTickets);
    }
    Fp8ForwardLaunch launch = bind_fp8_forward(memory(), a, tensors_);
    diagnostics_->apply(launch.params);
    check_cuda(kernels::launch_fp8_forward(launch.params, launch.maps, num_sms_, stream_),
               "the FP8 forward kernel");
    diagnostics_->count_rows(launch.params.pass, stream_);
}

}  // namespace mok::layer
