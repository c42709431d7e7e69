#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

// DLPack's C exchange API (DLPack 1.3), which a type of tensors offers by its attribute
// __dlpack_c_exchange_api__ (torch from 2.10): what a tensor is, at the price of a function call.
// The caller holds the interpreter's lock.
namespace mok::python {

namespace nb = nanobind;

// True: `out` describes the object's tensor, whose memory and shape stay the object's. False: its
// type does not offer the API.
bool read_by_exchange(nb::handle object, nb::dlpack::dltensor& out);

// The CUDA stream on which the framework of the object works at this moment. TypeError where its
// type does not offer the API.
uintptr_t current_stream(nb::handle object, int cuda_device);

}  // namespace mok::python
