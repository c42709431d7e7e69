#include "comm/cuda/nccl_memory.h"
#include "openmok/error.h"

namespace mok::comm {

void require_nccl_windows(const Group&) {
    throw Error(
        "windows by NCCL: expected a program built with nccl_device.h (NCCL 2.28 or later), found "
        "one built without");
}

std::unique_ptr<PeerMemory> make_nccl_memory(const Group& group, int64_t) {
    require_nccl_windows(group);
    return nullptr;
}

}  // namespace mok::comm
