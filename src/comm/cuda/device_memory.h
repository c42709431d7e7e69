#pragma once

#include "comm/peer_memory.h"

namespace mok::comm {

// Memory of the current device, for any number of ranks of one process that all use this device. A
// window lives until every rank's PeerMemory is gone.
std::unique_ptr<PeerMemory> make_device_memory(const Group& group, int64_t bytes);

}  // namespace mok::comm
