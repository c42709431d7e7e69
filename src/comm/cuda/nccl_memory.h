#pragma once

#include "comm/peer_memory.h"

namespace mok::comm {

// Windows between GPUs, one per rank, by NCCL: the current device of each rank, every rank a
// process of its own (or alone). Before anything is allocated every rank has checked its NCCL, and
// that its device is its own and reaches the other devices that it can see.
std::unique_ptr<PeerMemory> make_nccl_memory(const Group& group, int64_t bytes);

// What make_nccl_memory checks before it allocates, alone. Collective; throws Error with the same
// sentence on every rank.
void require_nccl_windows(const Group& group);

}  // namespace mok::comm
