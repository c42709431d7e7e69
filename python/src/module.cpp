// The extension openmok._core: the C++ API, thinly (docs/python.md, the explicit calls).
#include <nanobind/nanobind.h>
#include <openmok/error.h>

#include <exception>

#include "bindings.h"

namespace mok::python {
namespace {

void raise(const char* type, const nb::object& error) {
    PyErr_SetObject(nb::module_::import_("openmok.errors").attr(type).ptr(), error.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
    const auto errors = [] { return nb::module_::import_("openmok.errors"); };
    try {
        std::rethrow_exception(thrown);
    } catch (const TimeoutError& e) {
        raise("MokTimeout", errors().attr("MokTimeout")(e.what(), e.rank, e.peer));
    } catch (const ShapeError& e) {
        raise("MokShapeError", errors().attr("MokShapeError")(e.what()));
    } catch (const Error& e) {
        raise("MokError", errors().attr("MokError")(e.what()));
    }
}

}  // namespace
}  // namespace mok::python

NB_MODULE(_core, module) {
    // Graphs of torch that live at the interpreter's end hold contexts: no fault of anybody.
    nanobind::set_leak_warnings(false);
    nanobind::register_exception_translator(mok::python::translate);
    mok::python::bind_group(module);
    mok::python::bind_layer(module);
    mok::python::bind_fp8(module);
    mok::python::bind_moe(module);
    mok::python::bind_known(module);
    mok::python::bind_stacks(module);
}
