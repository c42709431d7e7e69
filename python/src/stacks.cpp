// Whether the experts of a list lie in memory as one tensor of all of them would.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>

#include "bindings.h"
#include "exchange.h"

namespace mok::python {
namespace {

using nb::dlpack::dltensor;

constexpr int64_t kNone = -1;

bool have_one_form(const dltensor& a, const dltensor& b) {
    const bool equal_types = a.dtype.code == b.dtype.code && a.dtype.bits == b.dtype.bits &&
                             a.dtype.lanes == b.dtype.lanes;
    if (!equal_types || a.ndim != b.ndim || a.device.device_type != b.device.device_type ||
        a.device.device_id != b.device.device_id) {
        return false;
    }
    if (!std::equal(a.shape, a.shape + a.ndim, b.shape)) return false;
    if (a.strides == nullptr || b.strides == nullptr) return a.strides == b.strides;
    return std::equal(a.strides, a.strides + a.ndim, b.strides);
}

// Elements from each tensor to the next, at least 0; kNone where they are of different shapes,
// types, strides or devices, lie at different distances or backwards, or are no tensors of torch.
// Says nothing of the memory between them.
int64_t equal_step(const nb::list& tensors) {
    dltensor first{}, t{};
    uintptr_t at = 0;
    int64_t step_bytes = 0, element_bytes = 1;
    for (size_t i = 0; i < tensors.size(); ++i) {
        dltensor& read = i == 0 ? first : t;
        if (!read_by_exchange(tensors[i], read)) return kNone;
        const uintptr_t data = reinterpret_cast<uintptr_t>(read.data) + read.byte_offset;
        if (i == 0) {
            element_bytes = std::max(1, read.dtype.bits * read.dtype.lanes / 8);
        } else {
            const int64_t bytes = static_cast<int64_t>(data - at);
            if (i == 1) step_bytes = bytes;
            if (bytes < 0 || bytes != step_bytes || !have_one_form(first, t)) return kNone;
        }
        at = data;
    }
    return step_bytes % element_bytes == 0 ? step_bytes / element_bytes : kNone;
}

}  // namespace

void bind_stacks(nb::module_& module) {
    using namespace nb::literals;
    module.def("equal_step", &equal_step, "tensors"_a);
}

}  // namespace mok::python
