// Whether a call of `openmok.moe` has the shapes and types of an earlier one (openmok/_known.py).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "bindings.h"
#include "exchange.h"

namespace mok::python {
namespace {

using nb::dlpack::dltensor;

bool is_type(const dltensor& t, nb::dlpack::dtype_code code, int bits) {
    return t.dtype.code == static_cast<uint8_t>(code) && t.dtype.bits == bits && t.dtype.lanes == 1;
}

bool is_f32(const dltensor& t) {
    return is_type(t, nb::dlpack::dtype_code::Float, 32);
}

bool is_contiguous(const dltensor& t) {
    int64_t step = 1;
    for (int d = t.ndim - 1; d >= 0; --d) {
        if (t.strides != nullptr && t.shape[d] != 1 && t.strides[d] != step) return false;
        step *= t.shape[d];
    }
    return true;
}

// Of a tensor of torch; what says nothing about it requires none.
bool requires_grad(nb::handle tensor) {
    static PyObject* const name = PyUnicode_InternFromString("requires_grad");
    PyObject* const value = PyObject_GetAttr(tensor.ptr(), name);
    if (value == nullptr) {
        PyErr_Clear();
        return false;
    }
    const bool is_true = value == Py_True;
    Py_DECREF(value);
    return is_true;
}

// What a call's tensors were: x [T, H] of any T, ids [T, K], and the weights' shapes.
class Likeness {
  public:
    // plain_types: of tensors that nobody watches; x's, ids' and the two weights' of tokens must be
    // of one of them.
    Likeness(nb::handle x, nb::handle topk_ids, const nb::tuple& weights,
             const nb::tuple& plain_types)
        : plain_types_(plain_types) {
        dltensor t;
        if (!read_by_exchange(x, t) || t.ndim != 2) return;
        hidden_ = t.shape[1];
        if (!read_by_exchange(topk_ids, t) || t.ndim != 2) return;
        top_k_ = t.shape[1];
        for (nb::handle weight : weights) {
            if (!read_by_exchange(weight, t)) return;
            shapes_.emplace_back(t.shape, t.shape + t.ndim);
        }
        is_known_ = true;
    }

    // None where a tensor is unlike, or cannot be taken as it is: the router's weights F32, they
    // and ids contiguous. Otherwise whether one of them requires a gradient.
    std::optional<bool> requires_gradients(nb::handle x, nb::handle topk_ids,
                                           nb::handle topk_weights, nb::handle shared_weights,
                                           const nb::tuple& weights) const {
        if (!holds(x, topk_ids, topk_weights, shared_weights, weights)) return std::nullopt;
        if (requires_grad(x) || requires_grad(topk_weights)) return true;
        for (nb::handle weight : weights) {
            if (requires_grad(weight)) return true;
        }
        return !shared_weights.is_none() && requires_grad(shared_weights);
    }

  private:
    bool is_plain(nb::handle tensor) const {
        for (nb::handle type : plain_types_) {
            if (type.is(tensor.type())) return true;
        }
        return false;
    }

    bool holds(nb::handle x, nb::handle topk_ids, nb::handle topk_weights,
               nb::handle shared_weights, const nb::tuple& weights) const {
        using Code = nb::dlpack::dtype_code;
        dltensor t;
        if (!is_known_ || !is_plain(x) || !is_plain(topk_ids) || !is_plain(topk_weights)) {
            return false;
        }
        if (!read_by_exchange(x, t) || t.ndim != 2 || t.shape[1] != hidden_) return false;
        if (!is_f32(t) && !is_type(t, Code::Bfloat, 16)) return false;
        const int64_t tokens = t.shape[0];
        if (!read_by_exchange(topk_ids, t) || t.ndim != 2) return false;
        if (t.shape[0] != tokens || t.shape[1] != top_k_ || !is_contiguous(t)) return false;
        if (!is_type(t, Code::Int, 64) && !is_type(t, Code::Int, 32)) return false;
        if (!read_by_exchange(topk_weights, t) || !is_f32(t) || !is_contiguous(t)) return false;
        if (!shared_weights.is_none()) {
            if (!is_plain(shared_weights) || !read_by_exchange(shared_weights, t)) return false;
            if (!is_f32(t) || !is_contiguous(t)) return false;
        }
        if (weights.size() != shapes_.size()) return false;
        for (size_t i = 0; i < shapes_.size(); ++i) {
            const std::vector<int64_t>& shape = shapes_[i];
            if (!read_by_exchange(weights[i], t) || t.ndim != static_cast<int>(shape.size())) {
                return false;
            }
            if (!std::equal(shape.begin(), shape.end(), t.shape)) return false;
        }
        return true;
    }

    bool is_known_ = false;
    int64_t hidden_ = 0, top_k_ = 0;
    std::vector<std::vector<int64_t>> shapes_;
    nb::tuple plain_types_;
};

}  // namespace

void bind_known(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Likeness>(module, "Likeness")
        .def(nb::init<nb::handle, nb::handle, const nb::tuple&, const nb::tuple&>(), "x"_a,
             "topk_ids"_a, "weights"_a, "plain_types"_a)
        .def("requires_gradients", &Likeness::requires_gradients, "x"_a, "topk_ids"_a,
             "topk_weights"_a, "shared_weights"_a.none(), "weights"_a);
}

}  // namespace mok::python
