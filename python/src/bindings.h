#pragma once

#include <nanobind/nanobind.h>

namespace mok::python {

namespace nb = nanobind;

void bind_group(nb::module_& module);
void bind_fp8(nb::module_& module);
void bind_known(nb::module_& module);
void bind_layer(nb::module_& module);
void bind_moe(nb::module_& module);
void bind_stacks(nb::module_& module);

}  // namespace mok::python
