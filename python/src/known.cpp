// Whether a call of `openmok.moe` has the shapes and types of an earlier one (openmok/_known.py).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
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

// What a call's tensors were: x [T, H] of any T, ids [T, K], and the weights' shapes.
class Likeness {
  public:
    Likeness(nb::handle x, nb::handle topk_ids, const nb::tuple& weights) {
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

    // Of tensors that can be taken as they are: the router's weights F32, they and ids contiguous.
    bool holds(nb::handle x, nb::handle topk_ids, nb::handle topk_weights,
               nb::handle shared_weights, const nb::tuple& weights) const {
        using Code = nb::dlpack::dtype_code;
        dltensor t;
        if (!is_known_ || !read_by_exchange(x, t) || t.ndim != 2 || t.shape[1] != hidden_) {
            return false;
        }
        if (!is_f32(t) && !is_type(t, Code::Bfloat, 16)) return false;
        const int64_t tokens = t.shape[0];
        if (!read_by_exchange(topk_ids, t) || t.ndim != 2) return false;
        if (t.shape[0] != tokens || t.shape[1] != top_k_ || !is_contiguous(t)) return false;
        if (!is_type(t, Code::Int, 64) && !is_type(t, Code::Int, 32)) return false;
        if (!read_by_exchange(topk_weights, t) || !is_f32(t) || !is_contiguous(t)) return false;
        if (!shared_weights.is_none() &&
            (!read_by_exchange(shared_weights, t) || !is_f32(t) || !is_contiguous(t))) {
            return false;
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

  private:
    bool is_known_ = false;
    int64_t hidden_ = 0, top_k_ = 0;
    std::vector<std::vector<int64_t>> shapes_;
};

}  // namespace

void bind_known(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Likeness>(module, "Likeness")
        .def(nb::init<nb::handle, nb::handle, const nb::tuple&>(), "x"_a, "topk_ids"_a, "weights"_a)
        .def("holds", &Likeness::holds, "x"_a, "topk_ids"_a, "topk_weights"_a,
             "shared_weights"_a.none(), "weights"_a);
}

}  // namespace mok::python
