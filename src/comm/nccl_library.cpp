#include "comm/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "openmok/error.h"

namespace mok::comm {
namespace {

// nccl.h encodes 2.9 and later as 10000 * major + 100 * minor + patch, earlier ones with 1000.
std::string version_text(int encoded) {
    const int unit = encoded >= 10000 ? 10000 : 1000;
    return std::to_string(encoded / unit) + "." + std::to_string(encoded % unit / 100) + "." +
           std::to_string(encoded % 100);
}

}  // namespace

NcclLibrary::NcclLibrary(int compiled_version) {
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    const char* given = std::getenv("MOK_NCCL_LIBRARY");
    path_ = given != nullptr ? given : "libnccl.so.2";
    handle_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
        throw Error("NCCL: expected the library " + path_ + ", found none (" + dlerror() +
                    "); MOK_NCCL_LIBRARY sets its path");
    }
    int version = 0;
    const auto get_version = function<int(int*)>("ncclGetVersion");
    if (get_version(&version) != 0) throw Error("NCCL: " + path_ + " does not say its version");
    if (version != compiled_version) {
        throw Error("NCCL: expected version " + version_text(compiled_version) +
                    ", which this program was compiled for, found " + version_text(version) +
                    " in " + path_);
    }
}

void* NcclLibrary::address(const char* name) const {
    void* found = dlsym(handle_, name);
    if (found == nullptr) {
        throw Error("NCCL: expected the function " + std::string(name) + " in " + path_ +
                    ", found none");
    }
    return found;
}

}  // namespace mok::comm
