#pragma once

#include <dlfcn.h>

#include <string>

namespace mok::cli {

// A library that may or may not be on this machine, opened while the object lives.
class SharedLibrary {
  public:
    explicit SharedLibrary(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
        if (handle_ == nullptr) error_ = dlerror();
    }
    // Not closed: a driver's threads may outlive the last call into it.
    ~SharedLibrary() = default;
    SharedLibrary(const SharedLibrary&) = delete;
    SharedLibrary& operator=(const SharedLibrary&) = delete;

    bool is_open() const { return handle_ != nullptr; }
    const std::string& error() const { return error_; }  // the loader's words

    // The function, or null where the library has none of this name.
    template <class Function>
    Function* find(const char* name) const {
        return is_open() ? reinterpret_cast<Function*>(dlsym(handle_, name)) : nullptr;
    }

  private:
    void* handle_;
    std::string error_;
};

}  // namespace mok::cli
