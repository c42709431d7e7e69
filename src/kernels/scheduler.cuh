#pragma once

#include "kernels/gathered_tiles.cuh"
#include "kernels/pair.cuh"

// The scheduler role: one warp of every CTA takes compute tasks in order, two at a time where CTAs
// work in pairs, waits until the inputs of its own are there and its outputs' rows are free, and
// hands it to the others, with the addresses of its rows that lie anywhere. Lane 0 claims and
// waits.
namespace mok::kernels {

__device__ inline QueueEntry queue_entry(const ForwardParams& p, plan::VisitRange gathered_tiles,
                                         const plan::Task& task) {
    const plan::Problem& problem = p.pass.problem;
    const bool gate_up = task.kind == plan::TaskKind::GateUp;
    QueueEntry e;
    e.kind = static_cast<int32_t>(task.kind);
    e.part = task.part;
    e.tile = task.tile;
    e.shared = plan::is_shared_tile(problem, task.tile);
    e.gathers = gate_up && gathered_tiles.has(task.tile);
    e.pushes = !gate_up && !e.shared && p.pushes_directly;
    e.is_dry = false;
    e.shares_b = false;
    e.k_blocks =
        plan::ceil_div(gate_up ? problem.hidden : plan::width_of(problem, e.shared), kTileK);
    const int32_t slot = task.tile * plan::kTileRows;
    if (e.shared) {
        e.expert = 0;
        e.row = (task.tile - plan::max_tiles(problem)) * plan::kTileRows;
        e.rows = plan::min_of(plan::kTileRows, problem.num_tokens - e.row);
        e.saved_row = p.saves_context ? e.row : -1;
    } else {
        e.expert = p.pass.table.tile_expert[task.tile];
        e.row = plan::ring_row(problem, slot);
        e.rows = plan::tile_rows(problem, p.pass.table, task.tile);
        e.saved_row = p.saves_context && plan::in_context(problem, slot) ? slot : -1;
    }
    return e;
}

class Scheduler {
  public:
    __device__ Scheduler(const ForwardParams& p, ForwardSharedMemory& smem,
                         const arch::Cluster& cluster)
        : p_(p),
          smem_(smem),
          cluster_(cluster),
          gathered_tiles_(gathered_tiles(p)),
          reads_lead_rows_(reads_lead_rows(p)) {
        at_.parity = 1;  // an empty queue: the first round of waits passes
    }

    __device__ void run() {
        const int64_t tasks = plan::count(p_.pass, plan::Role::Compute);
        const bool paired = is_paired(cluster_);
        const int size = paired ? 2 : 1, rank = cluster_.rank;
        const uint32_t count = static_cast<uint32_t>(paired ? (tasks + 1) / 2 : tasks);
        const uint64_t start = arch::nanoseconds();
        Tickets tickets(p_, smem_, cluster_);
        if (lane() == 0) tickets.begin();
        plan::PhaseTasks phase{};
        while (true) {
            uint32_t ticket = 0;
            if (lane() == 0) ticket = tickets.next(count);
            ticket = __shfl_sync(~0u, ticket, 0);
            if (ticket == kNoTicket) break;
            // Even lanes find the first task of a pair, odd ones the second, or the first again
            // where there is no second.
            const int64_t first = int64_t{ticket} * size;
            const bool alone = !paired || first + 1 == tasks;
            const int64_t i = first + (alone ? 0 : lane() % 2);
            const plan::Task task = plan::decode_compute(p_.pass, i, phase);
            QueueEntry entry = queue_entry(p_, gathered_tiles_, task);
            // In turns, each CTA has a dry step beside the other's task.
            const bool together = !paired || (!alone && run_together(entry));
            entry.shares_b = paired && together && have_same_weights(entry);
            const int turns = together || alone ? 1 : 2;
#pragma unroll 1  // all there is once: the code shares its cache with the consumers'
            for (int turn = 0; turn < turns; ++turn) {
                const int mine = together ? rank : turn;
                QueueEntry e = of_lane(entry, mine);
                const plan::Task t = of_lane(task, mine);
                if (mine != rank || !wait_for(t, first + mine)) make_dry(e);
                put(e);
            }
        }
        QueueEntry end{};
        end.kind = -1;
        put(end);
        if (lane() == 0) add_times(p_, waited_, start);
    }

  private:
    __device__ static int lane() {
        return threadIdx.x % 32;
    }

    // Of entries that differ in even and odd lanes: whether neither task waits for the other, and
    // both take as many stages.
    __device__ static bool run_together(const QueueEntry& e) {
        return same(e.kind) && same(e.shared);
    }
    // Of tasks that run together.
    __device__ static bool have_same_weights(const QueueEntry& e) {
        return same(e.part) && same(e.expert);
    }
    __device__ static bool same(int32_t v) {
        return __shfl_xor_sync(~0u, v, 1) == v;
    }

    __device__ static QueueEntry of_lane(const QueueEntry& e, int from) {
        QueueEntry r;
        r.kind = __shfl_sync(~0u, e.kind, from);
        r.expert = __shfl_sync(~0u, e.expert, from);
        r.part = __shfl_sync(~0u, e.part, from);
        r.tile = __shfl_sync(~0u, e.tile, from);
        r.row = __shfl_sync(~0u, e.row, from);
        r.saved_row = __shfl_sync(~0u, e.saved_row, from);
        r.rows = __shfl_sync(~0u, e.rows, from);
        r.k_blocks = __shfl_sync(~0u, e.k_blocks, from);
        r.shared = __shfl_sync(~0u, e.shared, from);
        r.gathers = __shfl_sync(~0u, e.gathers, from);
        r.pushes = __shfl_sync(~0u, e.pushes, from);
        r.is_dry = false;
        r.shares_b = __shfl_sync(~0u, e.shares_b, from);
        return r;
    }
    __device__ static plan::Task of_lane(const plan::Task& t, int from) {
        return {static_cast<plan::TaskKind>(__shfl_sync(~0u, static_cast<int32_t>(t.kind), from)),
                __shfl_sync(~0u, t.tile, from), __shfl_sync(~0u, t.part, from), -1, -1};
    }

    // False: the wait has expired. The CTA still keeps step with the other one.
    __device__ bool wait_for(const plan::Task& task, int64_t i) {
        bool met = true;
        if (lane() == 0) {
            if (p_.disturbance.stall_seed != 0) {
                stall(p_, plan::Role::Compute, static_cast<uint32_t>(i));
            }
            const uint64_t begin = arch::nanoseconds();
            met = wait_for_task(p_, task);
            waited_ += arch::nanoseconds() - begin;
        }
        return __all_sync(~0u, met);
    }
    __device__ static void make_dry(QueueEntry& entry) {
        entry.rows = 0;
        entry.saved_row = -1;
        entry.is_dry = true;
        entry.gathers = false;
        entry.pushes = false;
    }

    // Where the row of x of a slot lies, or where its row of y goes; 0: padding.
    __device__ uint64_t row_address(bool of_x, int32_t slot, int32_t home, int32_t route) const {
        const plan::Problem& problem = p_.pass.problem;
        const int64_t row_bytes = int64_t{problem.hidden} * 2;
        if (home < 0) return 0;
        if (!of_x) return reinterpret_cast<uint64_t>(p_.peer_combine[home]) + route * row_bytes;
        if (home == problem.rank) {
            return reinterpret_cast<uint64_t>(p_.peer_x[home]) + route / problem.top_k * row_bytes;
        }
        const int32_t at = reads_lead_rows_ ? p_.pass.table.slot_lead[slot] : slot;
        return reinterpret_cast<uint64_t>(p_.ring_x) + plan::ring_row(problem, at) * row_bytes;
    }

    // All readers see the entry whole: the lanes' addresses, then lane 0's rest and its arrival.
    __device__ void put(const QueueEntry& entry) {
        // Rows 4 lane .. 4 lane + 3.
        constexpr int kRows = plan::kTileRows / 32;
        static_assert(kRows == 4 && kGatherRows == kRows);
        const bool has_addresses = entry.gathers || entry.pushes;
        uint64_t address[kRows];
        if (has_addresses) {
            const int32_t slot = entry.tile * plan::kTileRows + kRows * lane();
            const plan::RouteTable& t = p_.pass.table;
            int32_t home[kRows], route[kRows];
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                home[i] = t.slot_home[slot + i];
                route[i] = t.slot_route[slot + i];
            }
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                address[i] = row_address(entry.gathers, slot + i, home[i], route[i]);
            }
        }
        arch::barrier_wait(&smem_.task_empty[at_.index], at_.parity);
        __syncwarp();  // before the arrival that lets the entry go on
        QueueEntry& to = smem_.queue[at_.index];
        if (has_addresses) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                to.address[entry.gathers ? gather_index(kRows * lane() + i) : kRows * lane() + i] =
                    address[i];
            }
        }
        if (lane() == 0) {
            to.kind = entry.kind;
            to.expert = entry.expert;
            to.part = entry.part;
            to.tile = entry.tile;
            to.row = entry.row;
            to.saved_row = entry.saved_row;
            to.rows = entry.rows;
            to.k_blocks = entry.k_blocks;
            to.shared = entry.shared;
            to.gathers = entry.gathers;
            to.pushes = entry.pushes;
            to.is_dry = entry.is_dry;
            to.shares_b = entry.shares_b;
        }
        __syncwarp();
        if (lane() == 0) arch::barrier_arrive(&smem_.task_full[at_.index]);
        at_.advance();
    }

    const ForwardParams& p_;
    ForwardSharedMemory& smem_;
    arch::Cluster cluster_;
    plan::VisitRange gathered_tiles_;
    bool reads_lead_rows_;
    arch::RingState<kQueue> at_;
    uint64_t waited_ = 0;
};

}  // namespace mok::kernels
