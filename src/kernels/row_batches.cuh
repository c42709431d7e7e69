#pragma once

#include "arch/copy.cuh"
#include "kernels/shuffle.cuh"
#include "plan/problem.h"

// Rows from memory to memory by one warp and the bulk copy engine, a batch of pieces at a time, a
// lane a piece: many copies under way for few instructions.
namespace mok::kernels {

// What a dispatch task moves, in each lane its own row.
struct RowCopies {
    uint32_t rows;  // lanes that have one
    const uint8_t* source;
    uint8_t* target;
    int32_t next;  // the slot that also gets it, -1: none
};

class RowBatches {
  public:
    // full: a barrier of one arrival, at `parity`. Pieces are at most most_bytes, a multiple of 16.
    __device__ RowBatches(arch::Barrier* full, uint8_t* buffer, int32_t buffer_bytes,
                          int32_t most_bytes, int32_t row_bytes)
        : full_(full), buffer_(buffer), row_bytes_(row_bytes), lane_(threadIdx.x % 32) {
        pieces_ = plan::ceil_div(row_bytes, most_bytes);
        piece_bytes_ = plan::round_up(plan::ceil_div(row_bytes, pieces_), 16);
        lanes_ = min(32, buffer_bytes / piece_bytes_);
    }

    // All lanes call it; on return every copy is complete. next_of(slot, write) passes the place of
    // a slot to write and returns the one after it.
    template <class NextOf>
    __device__ void move(const RowCopies& copies, uint32_t& parity, NextOf&& next_of) const {
        const int32_t total = __popc(copies.rows) * pieces_,
                      lane_of = lane_of_bit(copies.rows, lane_);
        uint8_t* const buffer = buffer_ + lane_ * piece_bytes_;
        for (int32_t first = 0; first < total; first += lanes_) {
            const int32_t unit = first + lane_, row = unit / pieces_;
            const int32_t offset = (unit - row * pieces_) * piece_bytes_;
            const int from = __shfl_sync(~0u, lane_of, row & 31);
            const uint8_t* source = shuffled(copies.source, from) + offset;
            uint8_t* target = shuffled(copies.target, from) + offset;
            int32_t to = __shfl_sync(~0u, copies.next, from);
            const bool mine = lane_ < lanes_ && unit < total && offset < row_bytes_;
            const uint32_t bytes = mine ? min(piece_bytes_, row_bytes_ - offset) : 0;
            const uint32_t sum = __reduce_add_sync(~0u, bytes);
            if (lane_ == 0) arch::barrier_arrive_expect(full_, sum);
            __syncwarp();
            if (mine) arch::load_bytes(buffer, source, bytes, full_);
            arch::barrier_wait(full_, parity);
            parity ^= 1;
            if (mine) {
                arch::store_bytes(target, buffer, bytes);
                while (to >= 0) {
                    to = next_of(to, [&](uint8_t* place) {
                        arch::store_bytes(place + offset, buffer, bytes);
                    });
                }
                arch::commit_stores();
                arch::wait_stores_read<0>();
            }
            __syncwarp();
        }
        arch::wait_stores_done();
        arch::fence_global_to_copies();
        __syncwarp();
    }

  private:
    template <class Pointer>
    __device__ static Pointer shuffled(Pointer p, int from) {
        return reinterpret_cast<Pointer>(
            __shfl_sync(~0u, reinterpret_cast<unsigned long long>(p), from));
    }

    arch::Barrier* full_;
    uint8_t* buffer_;
    int32_t row_bytes_, pieces_, piece_bytes_, lanes_;
    int lane_;
};

}  // namespace mok::kernels
