#include "cli/common/device_tensors.h"

#include "layer/device_copy.h"

namespace mok::cli {
namespace {

// From the first element to the last, whatever lies between them.
int64_t span_bytes(const ConstTensor& t) {
    int64_t last = 0;
    for (int i = 0; i < t.dims; ++i) {
        if (t.shape[i] == 0) return 0;
        last += (t.shape[i] - 1) * t.stride[i];
    }
    return (last + 1) * dtype_bytes(t.dtype);
}

}  // namespace

void* DeviceTensors::copy(const ConstTensor& host) {
    const int64_t bytes = span_bytes(host);
    blocks_.push_back(layer::cuda_memory(device_, bytes));
    void* const data = blocks_.back().data();
    if (bytes > 0) layer::copy_to_cuda(device_, data, host.data, bytes);
    return data;
}

ConstTensor DeviceTensors::input(const ConstTensor& host) {
    if (device_.kind == Device::Kind::Cpu || !host.present()) return host;
    ConstTensor on_device = host;
    on_device.data = copy(host);
    return on_device;
}

Tensor DeviceTensors::output(const Tensor& host) {
    if (device_.kind == Device::Kind::Cpu || !host.present()) return host;
    Tensor on_device = host;
    on_device.data = copy(host);
    results_.push_back({host, on_device.data});
    return on_device;
}

Weights DeviceTensors::input(const Weights& host) {
    Weights w;
    for (ConstTensor Weights::*t :
         {&Weights::gate, &Weights::up, &Weights::down, &Weights::gate_bias, &Weights::up_bias,
          &Weights::down_bias, &Weights::shared_gate, &Weights::shared_up, &Weights::shared_down}) {
        w.*t = input(host.*t);
    }
    w.fp8 = host.fp8;
    return w;
}

Inputs DeviceTensors::input(const Inputs& host) {
    return {input(host.x), input(host.topk_weights), input(host.shared_weights)};
}

InputGrads DeviceTensors::output(const InputGrads& host) {
    return {output(host.x), output(host.topk_weights), output(host.shared_weights)};
}

WeightGrads DeviceTensors::output(const WeightGrads& host) {
    WeightGrads g = host;
    for (Tensor WeightGrads::*t :
         {&WeightGrads::gate, &WeightGrads::up, &WeightGrads::down, &WeightGrads::gate_bias,
          &WeightGrads::up_bias, &WeightGrads::down_bias, &WeightGrads::shared_gate,
          &WeightGrads::shared_up, &WeightGrads::shared_down}) {
        g.*t = output(host.*t);
    }
    return g;
}

void DeviceTensors::fetch() const {
    for (const Result& result : results_) {
        const int64_t bytes = span_bytes(result.host);
        if (bytes > 0) {
            layer::copy_from_cuda(device_, result.host.data, result.on_device, bytes);
        }
    }
}

}  // namespace mok::cli
