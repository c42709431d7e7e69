#pragma once

#include <nccl.h>
#include <nccl_device.h>

#include "comm/nccl_library.h"

namespace mok::comm {

// The functions of NCCL that windows need, with the types that nccl.h declares. Throws as
// NcclLibrary does.
struct NcclApi {
    NcclLibrary library{NCCL_VERSION_CODE};

    decltype(ncclGetUniqueId)* get_unique_id =
        library.function<decltype(ncclGetUniqueId)>("ncclGetUniqueId");
    decltype(ncclCommInitRankConfig)* comm_init =
        library.function<decltype(ncclCommInitRankConfig)>("ncclCommInitRankConfig");
    decltype(ncclCommGetAsyncError)* comm_state =
        library.function<decltype(ncclCommGetAsyncError)>("ncclCommGetAsyncError");
    decltype(ncclCommFinalize)* comm_finalize =
        library.function<decltype(ncclCommFinalize)>("ncclCommFinalize");
    decltype(ncclCommDestroy)* comm_destroy =
        library.function<decltype(ncclCommDestroy)>("ncclCommDestroy");
    decltype(ncclCommAbort)* comm_abort =
        library.function<decltype(ncclCommAbort)>("ncclCommAbort");
    decltype(ncclMemAlloc)* mem_alloc = library.function<decltype(ncclMemAlloc)>("ncclMemAlloc");
    decltype(ncclMemFree)* mem_free = library.function<decltype(ncclMemFree)>("ncclMemFree");
    decltype(ncclCommWindowRegister)* window_register =
        library.function<decltype(ncclCommWindowRegister)>("ncclCommWindowRegister");
    decltype(ncclCommWindowDeregister)* window_deregister =
        library.function<decltype(ncclCommWindowDeregister)>("ncclCommWindowDeregister");
    decltype(ncclDevCommCreate)* dev_comm_create =
        library.function<decltype(ncclDevCommCreate)>("ncclDevCommCreate");
    decltype(ncclDevCommDestroy)* dev_comm_destroy =
        library.function<decltype(ncclDevCommDestroy)>("ncclDevCommDestroy");
    decltype(ncclGetErrorString)* error_string =
        library.function<decltype(ncclGetErrorString)>("ncclGetErrorString");
    decltype(ncclGetLastError)* last_error =
        library.function<decltype(ncclGetLastError)>("ncclGetLastError");
};

}  // namespace mok::comm
