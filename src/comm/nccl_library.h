#pragma once

#include <string>

namespace mok::comm {

// NCCL as it is on this machine, opened at run time: MOK_NCCL_LIBRARY if that is set, else
// libnccl.so.2 where the loader finds it, which is the one that the process has already, if any.
class NcclLibrary {
  public:
    // Turns NVLink multicast off first (NCCL_NVLS_ENABLE=0), unless the variable is set: windows
    // need none of it. Throws Error with one sentence where there is no library or its version is
    // not `compiled_version`, as NCCL_VERSION_CODE has it: what windows look like on the device
    // differs between versions.
    explicit NcclLibrary(int compiled_version);
    // Not closed: NCCL's threads may outlive the last call into it.
    ~NcclLibrary() = default;
    NcclLibrary(const NcclLibrary&) = delete;
    NcclLibrary& operator=(const NcclLibrary&) = delete;

    // Throws Error where the library has no function of this name.
    template <class Function>
    Function* function(const char* name) const {
        return reinterpret_cast<Function*>(address(name));
    }

  private:
    void* address(const char* name) const;

    std::string path_;
    void* handle_;
};

}  // namespace mok::comm
