#include "exchange.h"

#include <nanobind/stl/string.h>

#include <vector>

namespace mok::python {
namespace {

// As dlpack.h has it, which no header here brings along.
struct Header {
    uint32_t major, minor;
    const Header* older;  // another version of the same API, or null
};
struct Api {
    Header header;
    int (*allocate)();
    int (*managed_from_object)();
    int (*object_from_managed)();
    int (*read)(void* object, nb::dlpack::dltensor* out);  // may be null
    int (*current_stream)(int device_type, int32_t device, void** stream);
};

const Api* supported(const Header* header) {
    while (header != nullptr && header->major != 1) header = header->older;
    return reinterpret_cast<const Api*>(header);
}

// A subclass of tensors that do not live in one memory (torch's wrappers) says so by a dispatch of
// its own; what it would read as is nobody's tensor.
bool has_own_dispatch(nb::handle type) {
    constexpr const char *kApi = "__dlpack_c_exchange_api__", *kDispatch = "__torch_dispatch__";
    if (!nb::hasattr(type, kDispatch)) return false;
    for (nb::handle base : type.attr("__mro__")) {
        if (!nb::cast<bool>(base.attr("__dict__").attr("__contains__")(kApi))) continue;
        return !type.attr(kDispatch).is(base.attr(kDispatch));
    }
    return true;
}

const Api* find_api(nb::handle type) {
    const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
    constexpr const char* kName = "dlpack_exchange_api";
    if (!PyCapsule_IsValid(capsule.ptr(), kName) || has_own_dispatch(type)) return nullptr;
    return supported(static_cast<const Header*>(PyCapsule_GetPointer(capsule.ptr(), kName)));
}

const Api* api_of(nb::handle type) {
    struct Known {
        PyObject* type;
        const Api* api;
    };
    constexpr size_t kMost = 32;
    static std::vector<Known>* const known = new std::vector<Known>;
    for (const Known& k : *known) {
        if (k.type == type.ptr()) return k.api;
    }
    const Api* const api = find_api(type);
    // A type that is remembered lives on, so that its address is nobody else's.
    if (known->size() < kMost) known->push_back({type.inc_ref().ptr(), api});
    return api;
}

}  // namespace

bool read_by_exchange(nb::handle object, nb::dlpack::dltensor& out) {
    const Api* const api = api_of(object.type());
    if (api == nullptr || api->read == nullptr) return false;
    if (api->read(object.ptr(), &out) != 0) throw nb::python_error();
    return true;
}

uintptr_t current_stream(nb::handle object, int cuda_device) {
    const Api* const api = api_of(object.type());
    if (api == nullptr) {
        const std::string name = nb::cast<std::string>(nb::str(nb::type_name(object.type())));
        throw nb::type_error(("expected tensors with DLPack's C exchange API (torch from 2.10), "
                              "found " +
                              name)
                                 .c_str());
    }
    void* stream = nullptr;
    if (api->current_stream(nb::device::cuda::value, cuda_device, &stream) != 0) {
        throw nb::python_error();
    }
    return reinterpret_cast<uintptr_t>(stream);
}

}  // namespace mok::python
