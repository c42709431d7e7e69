#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <openmok/group.h>

#include <chrono>
#include <optional>

#include "bindings.h"

namespace mok::python {
namespace {

using Seconds = std::optional<double>;

GroupOptions options(const Seconds& timeout) {
    GroupOptions o;
    if (timeout) o.timeout = std::chrono::duration<double>(*timeout);
    return o;
}

}  // namespace

void bind_group(nb::module_& module) {
    using namespace nb::literals;
    module.def("has_cuda_backend", &has_cuda_backend);
    module.def("why_no_cuda", &why_no_cuda, "device"_a = 0);

    nb::class_<Group>(module, "Group", nb::is_weak_referenceable(),
                      "One rank's membership in a group of ranks that run a layer together.")
        .def_static(
            "alone", [](const Seconds& timeout) { return Group::self(options(timeout)); },
            "timeout"_a = nb::none(), "A group of this process alone, on the CPU.")
        .def_static(
            "in_process",
            [](int num_ranks, const Seconds& timeout) {
                return Group::in_process(num_ranks, options(timeout));
            },
            "num_ranks"_a, "timeout"_a = nb::none(),
            "Ranks that are threads of this process, on the CPU; element r belongs to rank r.")
        .def_static(
            "cuda_virtual",
            [](int num_ranks, int device, const Seconds& timeout) {
                return Group::cuda_virtual(num_ranks, device, options(timeout));
            },
            "num_ranks"_a, "device"_a, "timeout"_a = nb::none(),
            "Ranks that share one GPU, each used by a thread of its own.")
        .def_prop_ro("rank", &Group::rank)
        .def_prop_ro("size", &Group::size)
        .def_prop_ro("is_cuda",
                     [](const Group& g) { return g.device().kind == Device::Kind::Cuda; })
        .def_prop_ro("device_index", [](const Group& g) { return g.device().index; })
        .def(
            "abandon", [](const Group& g, const std::string& why) { g.abandon(why.c_str()); },
            "why"_a, "Declares this rank dead: the others' calls raise MokTimeout at once.")
        .def("__repr__", [](const Group& g) {
            const std::string where = g.device().kind == Device::Kind::Cuda
                                          ? "cuda:" + std::to_string(g.device().index)
                                          : "cpu";
            return "<openmok.Group rank " + std::to_string(g.rank()) + " of " +
                   std::to_string(g.size()) + ", " + where + ">";
        });
}

}  // namespace mok::python
