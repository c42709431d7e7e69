#pragma once

#include "arch/copy.cuh"
#include "kernels/block_scaled_elements.h"

namespace mok::kernels::block_scaled {

// Shared memory as block_scaled_elements.h asks for it.
struct SharedWords {
    __device__ uint32_t load_word(uint32_t at) const { return arch::load_shared_word(at); }
    __device__ Chunk load_chunk(uint32_t at) const {
        const int4 v = arch::load_shared_chunk(at);
        return {{static_cast<uint32_t>(v.x), static_cast<uint32_t>(v.y), static_cast<uint32_t>(v.z),
                 static_cast<uint32_t>(v.w)}};
    }
    __device__ void store_chunk(uint32_t at, const Chunk& c) const {
        arch::store_shared_chunk(at,
                                 int4{static_cast<int>(c.word[0]), static_cast<int>(c.word[1]),
                                      static_cast<int>(c.word[2]), static_cast<int>(c.word[3])});
    }
    __device__ void store_word(uint32_t at, uint32_t v) const { arch::store_shared_word(at, v); }
    __device__ void store_byte(uint32_t at, uint32_t v) const { arch::store_shared_byte(at, v); }
};

}  // namespace mok::kernels::block_scaled
