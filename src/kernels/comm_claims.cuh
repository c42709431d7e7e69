#pragma once

#include "kernels/forward_params.h"
#include "kernels/next_task.cuh"
#include "kernels/waiting.cuh"
#include "plan/reader.h"

// What the exchange role claims of its program: neighbouring tasks of a tile. Lane l knows row l of
// all of them.
namespace mok::kernels {

// What a lane knows of its row.
struct LaneRow {
    int32_t slot;  // -1: no row
    int32_t home;  // -1: padding, or no row
    int32_t route, lead, next;

    __device__ bool leads() const { return home >= 0 && lead == slot; }
    __device__ bool is_padding() const { return slot >= 0 && home < 0; }
    // Whether it counts for the claim's own tile.
    __device__ bool is_own() const { return slot >= 0 && lead == slot; }
};

struct CommClaim {
    int32_t count;    // tasks; 0: the program has ended
    uint32_t first;   // the first one's number among the tasks that are claimed
    plan::Task task;  // the first one
    LaneRow row;

    __device__ bool is_dispatch() const {
        return task.kind == plan::TaskKind::DispatchX || task.kind == plan::TaskKind::DispatchDY;
    }
};

// Whether this lane's task of a claim, whose first is number `first`, is not to be told.
__device__ inline bool is_lost(const PassParams& p, uint32_t first) {
    return first + threadIdx.x % 32 / plan::kCommRows + 1 == p.disturbance.lost_task;
}
// Of the lanes whose row counts, how many are told.
__device__ inline uint32_t told_rows(const PassParams& p, const CommClaim& at, bool counts) {
    return __popc(__ballot_sync(~0u, counts && !is_lost(p, at.first)));
}

// Slots of a pull group behind its lead, in their order; -1: no more. As many as there are
// registers for; the others follow the last one by slot_next. They are looked up once, for each is
// as far away as the L2 cache.
inline constexpr int kListed = 6;
struct GroupSlots {
    int32_t slot[kListed];
};
__device__ inline GroupSlots no_slots() {
    GroupSlots g;
#pragma unroll
    for (int32_t& slot : g.slot) slot = -1;
    return g;
}
// From `slot` on, by all lanes of a warp.
__device__ inline GroupSlots group_behind(const PassParams& p, int32_t slot) {
    GroupSlots g = no_slots();
#pragma unroll
    for (int i = 0; i < kListed; ++i) {
        g.slot[i] = slot;
        if (__all_sync(~0u, slot < 0)) break;
        if (slot >= 0) slot = p.pass.table.slot_next[slot];
    }
    return g;
}

// A claim is of one task at first, so that the first tiles are whole soon; then of several where
// rows are short. kClaimsOfOne: how many of these a warp has, on average.
inline constexpr int32_t kClaimsOfOne = 2;

// A warp claims one ahead, so that no ticket is waited for. Before it waits it tells what it has
// moved; so what others wait for is at most its next claim, behind one that waits for earlier tasks
// alone.
template <class Tasks>
class CommClaims {
  public:
    __device__ CommClaims(const PassParams& p, const Tasks& tasks, plan::CommTasks of_program,
                          int32_t row_bytes)
        : p_(p),
          tasks_(tasks),
          reader_(p.pass, of_program),
          at_once_(row_bytes <= kShortRow ? kMostAtOnce : (row_bytes <= 2 * kShortRow ? 2 : 1)),
          singles_(plan::round_up(kClaimsOfOne * tasks.num_ctas(), kMostAtOnce)) {
        claim();
    }
    // All lanes call it. Its loads of the route table are under way on return.
    __device__ CommClaim next() {
        const uint32_t ticket = __shfl_sync(~0u, claimed_, 0);
        CommClaim found{};
        found.count = ticket < singles_ ? 1 : at_once_;
        found.first = ticket < singles_ ? ticket : singles_ + (ticket - singles_) * at_once_;
        if (ticket == kNoTask || !reader_.seek(found.first)) {
            found.count = 0;
            found.row.slot = -1;
            return found;
        }
        claim();
        found.task = reader_.task();
        found.row = row_of_lane(found.task, found.count * plan::kCommRows);
        return found;
    }

  private:
    static constexpr int32_t kMostAtOnce = 32 / plan::kCommRows;
    static constexpr int32_t kShortRow = 4096;  // bytes
    static_assert(kMostAtOnce == 4 && plan::kCommParts % kMostAtOnce == 0, "a claim is of a tile");

    __device__ void claim() {
        if (threadIdx.x % 32 == 0) claimed_ = tasks_.next_task(p_, plan::Role::Comm);
    }
    __device__ LaneRow row_of_lane(const plan::Task& task, int32_t rows) const {
        const int32_t lane = threadIdx.x % 32;
        if (lane >= rows) return {-1, -1, 0, -1, -1};
        const plan::RouteTable& t = p_.pass.table;
        const int32_t slot = plan::first_comm_slot(task) + lane;
        return {slot, t.slot_home[slot], t.slot_route[slot], t.slot_lead[slot], t.slot_next[slot]};
    }

    const PassParams& p_;
    const Tasks& tasks_;
    plan::CommReader reader_;
    uint32_t at_once_, singles_;
    uint32_t claimed_ = 0;
};

// Tasks that one warp did together, for the trace: each its part of the time.
__device__ inline void trace_tasks(const PassParams& p, plan::Task first, int32_t count,
                                   uint64_t begin) {
    const uint64_t each = (arch::nanoseconds() - begin) / count;
#pragma unroll 1
    for (int32_t k = 0; k < count; ++k, ++first.part) {
        trace_span(p, first, begin + k * each, begin + (k + 1) * each);
    }
}

}  // namespace mok::kernels
