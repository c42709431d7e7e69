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
    module.def("has_cuda_backend", &has_cuda_backend, "Whether this build holds CUDA's.");
    module.def("why_no_cuda", &why_no_cuda, "device"_a = 0,
               "Why a GPU cannot be used, in one sentence; empty where it can.");

    nb::class_<MeetingPoint>(module, "MeetingPoint",
                             "Where the ranks of a group of processes meet: rank 0 listens there.")
        .def(nb::init<std::string, int>(), "host"_a, "port"_a, "What rank 0's says.")
        .def_static("listen", &MeetingPoint::listen, "host"_a,
                    "Rank 0's, at a free port of host: the name by which the others reach it.")
        .def_prop_ro("host", &MeetingPoint::host)
        .def_prop_ro("port", &MeetingPoint::port);

    nb::class_<Group>(module, "Group", nb::is_weak_referenceable(),
                      "One rank's membership in a group of ranks that run a layer together.\n"
                      "timeout: the bound on every wait for a rank, in seconds; absent:\n"
                      "MOK_TIMEOUT_S, or 600.")
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
        .def_static(
            "connect",
            [](const MeetingPoint& point, int rank, int size, int local_rank,
               const std::string& job, const Seconds& timeout) {
                const nb::gil_scoped_release released;
                return Group::connect(point, {rank, size, local_rank, job}, options(timeout));
            },
            "point"_a, "rank"_a, "size"_a, "local_rank"_a = 0, "job"_a = "",
            "timeout"_a = nb::none(),
            "This process's rank among processes, without a device. Returns when all have come.")
        .def_static(
            "cuda_connect",
            [](const MeetingPoint& point, int rank, int size, int local_rank, int device,
               const std::string& job, const Seconds& timeout) {
                const nb::gil_scoped_release released;
                return Group::cuda_connect(point, {rank, size, local_rank, job}, device,
                                           options(timeout));
            },
            "point"_a, "rank"_a, "size"_a, "local_rank"_a, "device"_a, "job"_a = "",
            "timeout"_a = nb::none(), "The same with a GPU for each rank.")
        .def_static(
            "cuda_from_environment",
            [](const Seconds& timeout) {
                const nb::gil_scoped_release released;
                return Group::cuda_from_environment(options(timeout));
            },
            "timeout"_a = nb::none(),
            "This process's rank among those that a launcher has started, with a GPU for each.")
        .def_prop_ro("rank", &Group::rank)
        .def_prop_ro("local_rank", &Group::local_rank)
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
