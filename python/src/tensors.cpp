#include "tensors.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <openmok/error.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "exchange.h"

namespace mok::python {
namespace {

template <class Set, class Void>
struct Field {
    const char* name;
    BasicTensor<Void> Set::*member;
};

constexpr Field<Weights, const void> kWeights[] = {
    {"gate", &Weights::gate},
    {"up", &Weights::up},
    {"down", &Weights::down},
    {"gate_bias", &Weights::gate_bias},
    {"up_bias", &Weights::up_bias},
    {"down_bias", &Weights::down_bias},
    {"shared_gate", &Weights::shared_gate},
    {"shared_up", &Weights::shared_up},
    {"shared_down", &Weights::shared_down},
};
constexpr Field<Inputs, const void> kInputs[] = {
    {"x", &Inputs::x},
    {"topk_weights", &Inputs::topk_weights},
    {"shared_weights", &Inputs::shared_weights},
};
constexpr Field<InputGrads, void> kInputGrads[] = {
    {"x", &InputGrads::x},
    {"topk_weights", &InputGrads::topk_weights},
    {"shared_weights", &InputGrads::shared_weights},
};
constexpr Field<WeightGrads, void> kWeightGrads[] = {
    {"gate", &WeightGrads::gate},
    {"up", &WeightGrads::up},
    {"down", &WeightGrads::down},
    {"gate_bias", &WeightGrads::gate_bias},
    {"up_bias", &WeightGrads::up_bias},
    {"down_bias", &WeightGrads::down_bias},
    {"shared_gate", &WeightGrads::shared_gate},
    {"shared_up", &WeightGrads::shared_up},
    {"shared_down", &WeightGrads::shared_down},
};

std::string type_name(const nb::dlpack::dtype& t) {
    using Code = nb::dlpack::dtype_code;
    const char* kind = "of another type, with";
    switch (static_cast<Code>(t.code)) {
        case Code::Int:
            kind = "int";
            break;
        case Code::UInt:
            kind = "uint";
            break;
        case Code::Float:
            kind = "float";
            break;
        case Code::Bool:
            kind = "bool";
            break;
        case Code::Complex:
            kind = "complex";
            break;
        default:
            return "a type of " + std::to_string(t.bits) + " bits with DLPack's code " +
                   std::to_string(t.code);
    }
    return kind + std::to_string(t.bits);
}

DType dtype_of(const std::string& name, const nb::dlpack::dtype& t) {
    using Code = nb::dlpack::dtype_code;
    const Code code = static_cast<Code>(t.code);
    if (t.lanes == 1) {
        if (code == Code::Bfloat && t.bits == 16) return DType::BF16;
        if (code == Code::Float && t.bits == 32) return DType::F32;
        if (code == Code::Int && t.bits == 32) return DType::I32;
        if (code == Code::Int && t.bits == 64) return DType::I64;
    }
    throw ShapeError(name + ": expected dtype BF16, F32, I32 or I64, found " + type_name(t));
}

int checked_dims(const std::string& name, size_t dims) {
    if (dims <= 3) return static_cast<int>(dims);
    throw ShapeError(name + ": expected at most 3 dimensions, found " + std::to_string(dims));
}

// Frameworks disagree on the strides of a tensor without elements.
template <class Void>
BasicTensor<Void> with_strides(BasicTensor<Void> t) {
    bool is_empty = false;
    for (int i = 0; i < t.dims; ++i) is_empty = is_empty || t.shape[i] == 0;
    int64_t step = 1;
    for (int i = t.dims - 1; is_empty && i >= 0; --i) {
        t.stride[i] = step;
        step *= std::max<int64_t>(t.shape[i], 1);
    }
    return t;
}

template <class Void, class Array>
BasicTensor<Void> view(const std::string& name, const Array& array) {
    BasicTensor<Void> t;
    t.dims = checked_dims(name, array.ndim());
    t.data = array.data();
    t.dtype = dtype_of(name, array.dtype());
    for (int i = 0; i < t.dims; ++i) {
        t.shape[i] = static_cast<int64_t>(array.shape(i));
        t.stride[i] = array.stride(i);
    }
    return with_strides(t);
}

template <class Void>
BasicTensor<Void> view(const std::string& name, const nb::dlpack::dltensor& d) {
    BasicTensor<Void> t;
    t.dims = checked_dims(name, static_cast<size_t>(d.ndim));
    t.data = static_cast<std::byte*>(d.data) + d.byte_offset;
    if (d.data == nullptr) t.data = nullptr;
    t.dtype = dtype_of(name, d.dtype);
    int64_t step = 1;
    for (int i = t.dims - 1; i >= 0; --i) {
        t.shape[i] = d.shape[i];
        t.stride[i] = d.strides != nullptr ? d.strides[i] : step;
        step *= d.shape[i];
    }
    return with_strides(t);
}

Place place_of(const std::string& name, const nb::dlpack::dltensor& d) {
    return {name, d.device.device_type, d.device.device_id};
}

std::string kind_of(nb::handle object) {
    return nb::cast<std::string>(nb::str(nb::type_name(object.type())));
}

template <class Array>
Array array_of(const std::string& name, nb::handle object, const char* expected) {
    Array array;
    if (!nb::try_cast(object, array)) {
        throw nb::type_error(
            (name + ": expected " + expected + ", found " + kind_of(object)).c_str());
    }
    return array;
}

// Whichever of input and output makes a tensor of this kind.
template <class Void>
auto hold_one(const std::string& name, nb::handle object) {
    if constexpr (std::is_const_v<Void>) {
        return input(name, object);
    } else {
        return output(name, object);
    }
}

template <class Set, class Void>
Held<Set> hold(const nb::dict& tensors, std::span<const Field<Set, Void>> fields,
               const std::string& prefix) {
    Held<Set> held;
    for (const auto& [key, object] : tensors) {
        const std::string name = nb::cast<std::string>(key);
        const auto field = std::ranges::find(fields, name, &Field<Set, Void>::name);
        if (field == fields.end()) {
            throw nb::type_error(("there is no tensor of the name " + name).c_str());
        }
        if (object.is_none()) continue;
        auto one = hold_one<Void>(prefix + name, object);
        held.tensors.*field->member = one.tensor;
        held.places.push_back(std::move(one.place));
        held.owners.push_back(nb::borrow(object));
    }
    return held;
}

}  // namespace

HeldInput input(const std::string& name, nb::handle object) {
    nb::dlpack::dltensor exchanged;
    if (read_by_exchange(object, exchanged)) {
        return {view<const void>(name, exchanged), place_of(name, exchanged)};
    }
    const auto array = array_of<nb::ndarray<nb::ro>>(
        name, object, "a tensor that DLPack can export (of torch: a detached one)");
    return {view<const void>(name, array), {name, array.device_type(), array.device_id()}};
}

HeldOutput output(const std::string& name, nb::handle object) {
    nb::dlpack::dltensor exchanged;
    if (read_by_exchange(object, exchanged)) {
        return {view<void>(name, exchanged), place_of(name, exchanged)};
    }
    const auto array = array_of<nb::ndarray<>>(
        name, object, "a writable tensor that DLPack can export (of torch: a detached one)");
    return {view<void>(name, array), {name, array.device_type(), array.device_id()}};
}

HeldBytes bytes_of(const std::string& name, nb::handle object) {
    nb::dlpack::dltensor t;
    if (!read_by_exchange(object, t) || t.ndim != 1 || t.dtype.bits != 8) {
        throw nb::type_error(
            (name + ": expected one dimension of bytes, found " + kind_of(object)).c_str());
    }
    return {{static_cast<std::byte*>(t.data) + t.byte_offset, t.shape[0]}, place_of(name, t)};
}

Held<Weights> hold_weights(const nb::dict& tensors) {
    constexpr const char* kFp8 = "fp8";
    if (!tensors.contains(kFp8)) return hold<Weights, const void>(tensors, kWeights, "");
    nb::dict others;
    for (const auto& [key, object] : tensors) {
        if (nb::cast<std::string>(key) != kFp8) others[key] = object;
    }
    const nb::object fp8 = tensors[kFp8];
    auto held = hold<Weights, const void>(others, kWeights, "");
    if (!fp8.is_none()) {
        held.tensors.fp8 = &nb::cast<const Fp8Weights&>(fp8);
        held.owners.push_back(fp8);
    }
    return held;
}
Held<Inputs> hold_inputs(const nb::dict& tensors) {
    return hold<Inputs, const void>(tensors, kInputs, "");
}
Held<InputGrads> hold_input_grads(const nb::dict& tensors) {
    return hold<InputGrads, void>(tensors, kInputGrads, "d_");
}
Held<WeightGrads> hold_weight_grads(const nb::dict& tensors) {
    return hold<WeightGrads, void>(tensors, kWeightGrads, "d_");
}

void check_place(const Device& device, const Place& place) {
    const bool host = place.device_type == nb::device::cpu::value ||
                      place.device_type == nb::device::cuda_host::value ||
                      place.device_type == nb::device::cuda_managed::value;
    // What a CUDA group takes is checked by the library, which asks the driver.
    if (device.kind == Device::Kind::Cuda || host) return;
    throw ShapeError(place.name + ": expected memory of the host for a group on the CPU, found " +
                     (place.device_type == nb::device::cuda::value
                          ? "CUDA device " + std::to_string(place.device_index)
                          : "DLPack's device type " + std::to_string(place.device_type)));
}

}  // namespace mok::python
