#pragma once

#include "arch/copy.cuh"
#include "kernels/comm_claims.cuh"
#include "kernels/layout.cuh"
#include "kernels/shuffle.cuh"
#include "plan/signals.h"

// Rows from memory to memory by one warp and the bulk copy engine, in batches of as many bytes as
// fit. Two batches are under way: while one is written the next is read, be it of the same claim or
// of the next one, and a claim is told when the batch behind it has come. A copy costs its thread a
// dozen instructions, however long it is, so a batch is few of them: one read a row, one write
// where its rows' places follow each other.
namespace mok::kernels {

// Where rows pass through, half for each of two batches.
struct ExchangeRoom {
    uint8_t* at;
    int32_t bytes;
    bool tells_at_once;  // a claim is told as soon as it is written
};

// A claim whose rows are under way.
struct PulledClaim {
    plan::TaskKind kind;
    int32_t tile, part, count;  // its first task, and how many
    uint32_t own;               // rows of its tile to tell
    bool has_groups;            // rows of it go to several slots
    uint32_t first;             // its first task's number
    uint64_t begin;             // where the pass is traced
};
__device__ inline PulledClaim pulled_claim(const PassParams& p, const CommClaim& at,
                                           uint64_t begin) {
    const bool groups = __any_sync(~0u, at.row.leads() && at.row.next >= 0);
    return {at.task.kind, at.task.tile, at.task.part, at.count, told_rows(p, at, at.row.is_own()),
            groups,       at.first,     begin};
}

// Makes a claim known, by all lanes. The warp's copies of its rows are complete.
__device__ inline void tell_pulled(const PassParams& p, const PulledClaim& at) {
    const int lane = threadIdx.x % 32;
    // This lane's ordinary stores and completed copies -> whoever sees the counts.
    arch::fence_global_to_copies();
    __syncwarp();
    const plan::SignalKind kind = plan::dispatched_signal(at.kind);
    if (at.has_groups && lane < at.count * plan::kCommRows && !is_lost(p, at.first)) {
        const auto tell = [&](const plan::Arrival& a) { arrive(p, a); };
        const int32_t slot = at.tile * plan::kTileRows + at.part * plan::kCommRows + lane;
        plan::for_each_slot_arrival(p.pass, kind, slot, tell);
    }
    if (lane != 0) return;
    if (at.own > 0) arrive(p, {kind, at.tile, at.own});
    if (p.traced) trace_tasks(p, {at.kind, at.tile, at.part, -1, -1}, at.count, at.begin);
}

// Params: see exchange.cuh. All lanes of the warp call its functions.
template <class Params>
class RowStream {
  public:
    __device__ RowStream(const Params& p, SharedMemory& smem)
        : p_(p), smem_(smem), row_bytes_(pulled_bytes(p)), lane_(threadIdx.x % 32) {}

    // Of what is put from now on. Nothing is under way.
    __device__ void use(const ExchangeRoom& room) {
        batch_bytes_ = room.bytes / kBatches / kLineBytes * kLineBytes;
        rows_a_batch_ = batch_bytes_ / row_bytes_;
        rest_a_batch_ = batch_bytes_ - rows_a_batch_ * row_bytes_;
        buffer_ = room.at;
        tells_at_once_ = room.tells_at_once;
    }

    // The rows of a claim of dispatch tasks behind those before. source: of this lane's row at its
    // home, null where it is not pulled. What the lanes store before the next call is told with
    // the claim.
    __device__ void put(const CommClaim& at, const uint8_t* source, uint64_t begin) {
        coming_ = pulled_claim(p_, at, begin);
        const Rows rows = gather(at, source);
        int32_t first_row = 0, offset = 0;
        for (int32_t done = 0; done == 0 || done < rows.bytes; done += batch_bytes_) {
            const Batch batch = read(rows, first_row, offset, done);
            first_row += rows_a_batch_;
            offset += rest_a_batch_;
            if (offset >= row_bytes_) {
                offset -= row_bytes_;
                ++first_row;
            }
            write(tells_at_once_);
            going_ = batch;
            if (done == 0) going_claim_ = coming_;
        }
    }

    // Until everything that was put is complete and told.
    __device__ void finish() {
        write(true);
        going_.is_any = false;
    }

  private:
    static constexpr int32_t kLineBytes = 128;

    // The rows of a claim that are pulled, without a gap: lane l has the l-th.
    struct Rows {
        int32_t bytes;    // of all
        bool together;    // their places follow each other
        uint8_t* target;  // then the first one's
        const uint8_t* source;
        int32_t slot;
        GroupSlots group;
    };
    // Of a batch that is being read what this lane will write.
    struct Batch {
        bool is_any = false;
        bool ends;  // the claim
        uint8_t* target;
        int32_t at, bytes;  // in the batch
        int32_t offset;     // in the row
        GroupSlots group;
    };

    __device__ Rows gather(const CommClaim& at, const uint8_t* source) const {
        const uint32_t pulled = __ballot_sync(~0u, source != nullptr);
        const int first = __ffs(pulled) - 1 & 31;
        const uint32_t from_first = pulled >> first;
        Rows rows;
        rows.bytes = __popc(pulled) * row_bytes_;
        // Neighbours, or else the n-th lane that has one.
        const bool neighbours = (from_first & (from_first + 1)) == 0;
        const int from = neighbours ? (first + lane_) & 31 : lane_of_bit(pulled, lane_) & 31;
        rows.source = value_of_lane(source, from);
        rows.slot = __shfl_sync(~0u, at.row.slot, from);
        rows.group = no_slots();
        if (coming_.has_groups) {
            rows.group = group_behind(p_, at.row.leads() ? at.row.next : -1);
            rows.group = value_of_lane(rows.group, from);
        }
        rows.together = neighbours && !coming_.has_groups;
        rows.target = nullptr;
        if (pulled != 0 && rows.together) rows.target = pulled_place(p_, at.task.kind, rows.slot);
        return rows;
    }

    // Begins to read what follows `done` of the rows' bytes, which is `offset` of the first_row-th,
    // into the half that is free. Lane l reads the batch's part of row first_row + l.
    __device__ Batch read(const Rows& rows, int32_t first_row, int32_t offset, int32_t done) {
        arch::wait_stores_read<0>();  // of the batch before the one that is being read
        __syncwarp();                 // by other lanes too
        const int row = first_row + lane_ & 31;
        const uint8_t* source = value_of_lane(rows.source, row);
        const int32_t size = min(batch_bytes_, rows.bytes - done);
        const int32_t from = lane_ == 0 ? offset : 0;
        const int32_t at = lane_ * row_bytes_ - offset + from;
        const int32_t mine = min(row_bytes_ - from, size - at);
        half_ ^= 1;
        arch::Barrier* const full = &smem_.batch_full[half_];
        if (lane_ == 0) arch::barrier_arrive_expect(full, size);
        if (mine > 0) {
            arch::load_bytes(buffer_ + half_ * batch_bytes_ + at, source + from, mine, full);
        }
        Batch batch;
        batch.is_any = true;
        batch.ends = done + batch_bytes_ >= rows.bytes;
        batch.at = at;
        batch.offset = from;
        batch.group = no_slots();
        if (rows.together) {  // lane 0 has the first one's place
            batch.target = rows.target + done;
            batch.bytes = lane_ == 0 ? size : 0;
        } else {
            const int32_t slot = __shfl_sync(~0u, rows.slot, row);
            if (coming_.has_groups) batch.group = value_of_lane(rows.group, row);
            batch.bytes = max(mine, 0);
            if (mine > 0) batch.target = pulled_place(p_, coming_.kind, slot) + from;
        }
        return batch;
    }

    // Begins to write the batch that was read before the last one. Tells the claim that the batch
    // before it ended; with `all` waits, and tells also the one that this batch ends.
    __device__ void write(bool all) {
        bool ends = false;
        if (going_.is_any) {
            const int half = tail_;
            tail_ ^= 1;
            arch::barrier_wait(&smem_.batch_full[half], parity_ >> half & 1);
            parity_ ^= 1u << half;
            if (going_.bytes > 0) write_piece(buffer_ + half * batch_bytes_ + going_.at);
            arch::commit_stores();
            ends = going_.ends;
        }
        do {
            if (has_written_) {
                if (all) {
                    arch::wait_stores_done<0>();
                } else {
                    arch::wait_stores_done<1>();
                }
                tell_pulled(p_, written_);
            }
            has_written_ = ends;
            if (ends) written_ = going_claim_;
            ends = false;
        } while (all && has_written_);
    }
    __device__ void write_piece(const uint8_t* from) {
        arch::store_bytes(going_.target, from, going_.bytes);
        int32_t next = -1;
#pragma unroll
        for (const int32_t slot : going_.group.slot) {
            if (slot < 0) return;
            write_to(slot, from);
            next = slot;
        }
        while ((next = p_.pass.table.slot_next[next]) >= 0) write_to(next, from);
    }
    __device__ void write_to(int32_t slot, const uint8_t* from) {
        arch::store_bytes(pulled_place(p_, going_claim_.kind, slot) + going_.offset, from,
                          going_.bytes);
    }

    const Params& p_;
    SharedMemory& smem_;
    uint8_t* buffer_;
    int32_t row_bytes_, batch_bytes_;
    int32_t rows_a_batch_, rest_a_batch_;  // whole rows, and bytes beyond them
    bool tells_at_once_;
    int lane_;
    int half_ = 1, tail_ = 0;  // of the last batch read; of the next one to be written
    uint32_t parity_ = 0;      // a bit a half
    Batch going_;              // is being read
    PulledClaim coming_, going_claim_;
    bool has_written_ = false;
    PulledClaim written_;  // to be told
};

}  // namespace mok::kernels
