// Weights in FP8: openmok/fp8_weights.h.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <openmok/fp8_weights.h>

#include "bindings.h"
#include "tensors.h"
#include "workspace.h"

namespace mok::python {
namespace {

nb::ndarray<> bytes_of_weights(nb::handle self, SharedWorkspace& w) {
    Fp8Weights& weights = nb::cast<Fp8Weights&>(self);
    const size_t shape[] = {static_cast<size_t>(weights.bytes())};
    const int64_t strides[] = {1};
    const bool is_cuda = w.device.kind == Device::Kind::Cuda;
    const int device = is_cuda ? nb::device::cuda::value : nb::device::cpu::value;
    return {weights.data(), 1, shape, self, strides, nb::dtype<uint8_t>(), device, w.device.index};
}

}  // namespace

void bind_fp8(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Fp8Weights>(
        module, "Fp8Weights",
        "The routed experts' gate, up and down in FP8, in both orientations, of a workspace whose\n"
        "precision is one of FP8. Its memory stays at one address. MokShapeError for bf16.")
        .def(
            "__init__",
            [](Fp8Weights* self, const SharedWorkspace& w) { new (self) Fp8Weights(w.workspace); },
            "workspace"_a)
        .def("invalidate", &Fp8Weights::invalidate,
             "What an optimizer's step calls: passes refuse it until the next quantize_weights.")
        .def("set_filled", &Fp8Weights::set_filled,
             "For a caller that has written `data` itself: passes take it.")
        .def_prop_ro("is_filled", &Fp8Weights::is_filled)
        .def_prop_ro("bytes", &Fp8Weights::bytes)
        .def("data", &bytes_of_weights, "workspace"_a,
             "The memory where the group computes, [bytes] U8 for DLPack (docs/precision.md).");
    module.def(
        "quantize_weights",
        [](SharedWorkspace& w, const Held<Weights>& weights, Fp8Weights& to) {
            run(w, {&weights.places},
                [&](Workspace& workspace) { quantize_weights(workspace, weights.tensors, to); });
        },
        "workspace"_a, "weights"_a, "to"_a,
        "Quantises gate, up and down, BF16 or F32. Not collective.");
}

}  // namespace mok::python
