#include "layer/cuda_check.h"

#include <cuda_runtime_api.h>

#include <string>

namespace mok::layer {
namespace {

std::string place_of(const cudaPointerAttributes& at) {
    switch (at.type) {
        case cudaMemoryTypeDevice:
            return "memory of CUDA device " + std::to_string(at.device);
        case cudaMemoryTypeHost:
            return "pinned host memory";
        default:
            return "host memory";
    }
}

}  // namespace

void check_on_device(int device, const char* name, const ConstTensor& t) {
    if (!t.present()) return;
    for (int i = 0; i < t.dims; ++i) {
        if (t.shape[i] == 0) return;
    }
    cudaPointerAttributes at{};
    if (cudaPointerGetAttributes(&at, t.data) != cudaSuccess) {
        cudaGetLastError();
        at.type = cudaMemoryTypeUnregistered;
    }
    if (at.type == cudaMemoryTypeManaged) return;
    if (at.type == cudaMemoryTypeDevice && at.device == device) return;
    throw ShapeError(std::string(name) + ": expected memory of CUDA device " +
                     std::to_string(device) + ", found " + place_of(at));
}

void check_on_device(int device, const PassArguments& a) {
    const auto check = [device](const char* name, const ConstTensor& t) {
        check_on_device(device, name, t);
    };
    check("gate", a.weights.gate);
    check("up", a.weights.up);
    check("down", a.weights.down);
    check("gate_bias", a.weights.gate_bias);
    check("up_bias", a.weights.up_bias);
    check("down_bias", a.weights.down_bias);
    check("shared_gate", a.weights.shared_gate);
    check("shared_up", a.weights.shared_up);
    check("shared_down", a.weights.shared_down);
    check("x", a.inputs.x);
    check("topk_weights", a.inputs.topk_weights);
    check("shared_weights", a.inputs.shared_weights);
    check("d_out", a.d_out);
    check("out", a.out);
}

void check_cuda_tuning(const Setup& setup) {
    if (setup.tuning.keep_x) {
        throw ShapeError(
            "tuning.keep_x: expected false on a CUDA group, whose contexts do not "
            "keep x, found true");
    }
}

void check_cuda_diagnostics(const Diagnostics& d) {
    const auto refuse = [](bool refused, const char* name) {
        if (!refused) return;
        throw ShapeError(std::string("diagnostics.") + name +
                         ": expected its default on a CUDA group, found another value");
    };
    refuse(d.order_seed != 0, "order_seed");
    refuse(d.die_after_tasks != -1, "die_after_tasks");
    if (d.trace_capacity < 0) {
        throw ShapeError("diagnostics.trace_capacity: expected at least 0, found " +
                         std::to_string(d.trace_capacity));
    }
}

}  // namespace mok::layer
