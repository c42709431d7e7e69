#pragma once

#include <nanobind/nanobind.h>

#include <openmok/device.h>
#include <openmok/layer.h>
#include <openmok/operands.h>

#include <string>
#include <vector>

// Tensors of any framework as the library takes them, by DLPack and without a copy.
namespace mok::python {

namespace nb = nanobind;

// Where a tensor lies, as DLPack says it.
struct Place {
    std::string name;
    int device_type, device_index;
};

// Tensors that stay alive as long as this does.
template <class Set>
struct Held {
    Set tensors;
    std::vector<Place> places;
    std::vector<nb::object> owners;
};

struct HeldInput {
    ConstTensor tensor;
    Place place;
};
struct HeldOutput {
    Tensor tensor;
    Place place;
};

// A view of the memory of `object`, which the caller keeps alive. ShapeError for an element type
// that the library does not know and for more than three dimensions; TypeError for what is no
// tensor, or, of an output, cannot be written.
HeldInput input(const std::string& name, nb::handle object);
HeldOutput output(const std::string& name, nb::handle object);

// Bytes: a contiguous tensor of 8-bit elements, which the caller keeps alive.
struct HeldBytes {
    Block block;
    Place place;
};
HeldBytes bytes_of(const std::string& name, nb::handle object);

// Sets of tensors by name; None is an absent tensor. TypeError for a name that the set does not
// have. Weights' `fp8` is an Fp8Weights.
Held<Weights> hold_weights(const nb::dict& tensors);
Held<Inputs> hold_inputs(const nb::dict& tensors);
Held<InputGrads> hold_input_grads(const nb::dict& tensors);
Held<WeightGrads> hold_weight_grads(const nb::dict& tensors);

// ShapeError for a tensor that a group on this device cannot read.
void check_place(const Device& device, const Place& place);

}  // namespace mok::python
