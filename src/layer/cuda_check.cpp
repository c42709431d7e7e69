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

void PlaceCheck::require(const char* name, const ConstTensor& t) {
    if (!t.present()) return;
    for (int i = 0; i < t.dims; ++i) {
        if (t.shape[i] == 0) return;
    }
    const uint64_t hash = reinterpret_cast<uintptr_t>(t.data) * 0x9e3779b97f4a7c15u;
    const void*& known = known_[hash >> 55];
    if (known == t.data) return;
    cudaPointerAttributes at{};
    if (cudaPointerGetAttributes(&at, t.data) != cudaSuccess) {
        cudaGetLastError();
        at.type = cudaMemoryTypeUnregistered;
    }
    const bool is_readable = at.type == cudaMemoryTypeManaged ||
                             (at.type == cudaMemoryTypeDevice && at.device == device_);
    if (!is_readable) {
        throw ShapeError(std::string(name) + ": expected memory of CUDA device " +
                         std::to_string(device_) + ", found " + place_of(at));
    }
    known = t.data;
}

void PlaceCheck::require(const PassArguments& a) {
    const auto check = [this](const char* name, const ConstTensor& t) { require(name, t); };
    check("gate", a.weights.gate);
    check("up", a.weights.up);
    check("down", a.weights.down);
    check("gate_bias", a.weights.gate_bias);
    check("up_bias", a.weights.up_bias);
    check("down_bias", a.weights.down_bias);
    check("shared_gate", a.weights.shared_gate);
    check("shared_up", a.weights.shared_up);
    check("shared_down", a.weights.shared_down);
    if (a.context != nullptr && a.context->block.data != nullptr) {
        check("context", {a.context->block.data, DType::I32, {1}});
    }
    check("x", a.inputs.x);
    check("topk_weights", a.inputs.topk_weights);
    check("shared_weights", a.inputs.shared_weights);
    check("d_out", a.d_out);
    check("out", a.out);
    check("d_x", a.input_grads.x);
    check("d_topk_weights", a.input_grads.topk_weights);
    check("d_shared_weights", a.input_grads.shared_weights);
    check("d_gate", a.weight_grads.gate);
    check("d_up", a.weight_grads.up);
    check("d_down", a.weight_grads.down);
    check("d_gate_bias", a.weight_grads.gate_bias);
    check("d_up_bias", a.weight_grads.up_bias);
    check("d_down_bias", a.weight_grads.down_bias);
    check("d_shared_gate", a.weight_grads.shared_gate);
    check("d_shared_up", a.weight_grads.shared_up);
    check("d_shared_down", a.weight_grads.shared_down);
}

void check_cuda_gradients(const PassArguments& a) {
    constexpr int64_t kPiece = 16;
    const auto check = [](const char* name, const Tensor& t) {
        if (!t.present()) return;
        const auto refuse = [name](const std::string& what, int64_t found) {
            throw ShapeError(std::string(name) + ": expected " + what +
                             " that is a multiple of 16 bytes on a CUDA group, found " +
                             std::to_string(found));
        };
        const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(t.data) % kPiece);
        if (past != 0) refuse("an address", past);
        for (int d = 0; d + 1 < t.dims; ++d) {
            const int64_t bytes = t.stride[d] * dtype_bytes(t.dtype);
            if (t.shape[d] > 1 && bytes % kPiece != 0) {
                refuse("a stride of dimension " + std::to_string(d), bytes);
            }
        }
    };
    check("d_x", a.input_grads.x);
    check("d_gate", a.weight_grads.gate);
    check("d_up", a.weight_grads.up);
    check("d_down", a.weight_grads.down);
    check("d_shared_gate", a.weight_grads.shared_gate);
    check("d_shared_up", a.weight_grads.shared_up);
    check("d_shared_down", a.weight_grads.shared_down);
}

void check_cuda_tuning(const Setup& setup) {
    if (plan::is_fp8(setup.problem) && !setup.tuning.fp8_dispatch) {
        throw ShapeError(
            "tuning.fp8_dispatch: expected true on a CUDA group, whose forward reads x in FP8 "
            "alone, found false");
    }
    if (setup.tuning.keep_x) {
        throw ShapeError(
            "tuning.keep_x: expected false on a CUDA group, whose contexts do not "
            "keep x, found true");
    }
}

void check_cuda_precision(const Setup& setup, bool has_block_scales) {
    if (!plan::is_fp8(setup.problem) || !has_block_scales) return;
    if (setup.shape.precision != Precision::Mxfp8) {
        throw ShapeError(
            "shape.precision: expected bf16 or mxfp8 on a CUDA group of GPUs whose tensor cores "
            "have block scales, found fp8_block");
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
