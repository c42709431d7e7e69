#pragma once

#include "kernels/backward_layout.cuh"
#include "kernels/pair.cuh"
#include "kernels/shuffle.cuh"

// The scheduler role of a backward: one warp of every CTA takes compute tasks in order, two at a
// time where CTAs work in pairs, waits until the inputs of its own are there and its outputs' rows
// are free, and hands it to loader and consumers. A weight gradient has two waits a tile of its
// piece, so the lanes wait for a signal each.
namespace mok::kernels {

// The rest of a wgrad's entry. Without rows nothing is added: the old value stays to the bit, -0
// included; zeros to be stored are the product of one block of zeros. Blocks of k that hold padding
// alone are left out.
__device__ inline void describe_wgrad(const BackwardParams& p, BackwardEntry& e) {
    const WgradTarget t = wgrad_target(p, e);
    e.mode = (e.shared ? p.shared_grads : p.grads).mode;
    e.has_work =
        (t.matrix.wanted || t.bias.wanted) && (e.num_rows > 0 || e.mode == GradMode::Overwrite);
    e.stores = e.has_work && e.ends && t.matrix.wanted;
    e.is_bf16 = t.matrix.is_bf16;
    e.by_stage = e.stores && !e.is_bf16;
    e.at = plan::wgrad_tile(e.kind, t.rows, t.cols, e.part);
    e.has_bias = t.bias.wanted && e.at.col == 0;
    e.k_blocks = e.has_work ? max(1, plan::ceil_div(e.num_rows, kTileK)) : 0;
    e.steps = e.k_blocks + (e.by_stage ? 1 : 0);
}

__device__ inline BackwardEntry backward_entry(const BackwardParams& p, const plan::Task& task) {
    const plan::Problem& problem = p.pass.problem;
    const plan::RouteTable& table = p.pass.table;
    BackwardEntry e{};
    e.kind = task.kind;
    e.more = true;
    e.tile = task.tile;
    e.part = task.part;
    e.piece = task.piece;
    e.ends = true;
    if (plan::is_wgrad(task.kind)) {
        e.shared = task.piece < 0;
        e.num_rows = problem.num_tokens;
        if (e.shared) {
            describe_wgrad(p, e);
            return e;
        }
        const plan::Piece piece = plan::piece_at(problem, table, task.macro, task.piece);
        e.expert = piece.expert;
        e.begin = piece.begin;
        e.ring_row = plan::ring_row(problem, e.begin);
        const int32_t real =
            table.segment_begin[e.expert] + plan::segment_rows(problem, table, e.expert);
        e.num_rows = min(piece.end, real) - piece.begin;
        e.continues = piece.continues;
        e.ends = piece.ends;
        describe_wgrad(p, e);
        return e;
    }
    e.shared = plan::is_shared_tile(problem, task.tile);
    e.k_blocks = task.kind == plan::TaskKind::GateUpDgrad
                     ? 2 * plan::ceil_div(plan::width_of(problem, e.shared), kTileK)
                     : plan::ceil_div(problem.hidden, kTileK);
    if (e.shared) {
        e.begin = (task.tile - plan::max_tiles(problem)) * plan::kTileRows;
        e.ring_row = e.begin;
        e.num_rows = min(plan::kTileRows, problem.num_tokens - e.begin);
    } else {
        e.begin = task.tile * plan::kTileRows;
        e.ring_row = plan::ring_row(problem, e.begin);
        e.expert = table.tile_expert[task.tile];
        e.num_rows = plan::tile_rows(problem, table, task.tile);
    }
    e.steps = e.k_blocks;
    if (task.kind == plan::TaskKind::DownDgrad) {
        e.steps += gate_up_blocks(plan::width_of(problem, e.shared), e.part);
    }
    return e;
}

class BackwardScheduler {
  public:
    __device__ BackwardScheduler(const BackwardParams& p, BackwardSharedMemory& smem,
                                 const arch::Cluster& cluster)
        : p_(p), smem_(smem), cluster_(cluster) {
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
            BackwardEntry found = backward_entry(p_, task);
            // In turns, each CTA has a dry task beside the other's.
            const bool together = !paired || (!alone && run_together(found));
            found.shares_b = paired && together && have_same_b(found);
            const int turns = together || alone ? 1 : 2;
#pragma unroll 1  // all there is once: the code shares its cache with the consumers'
            for (int turn = 0; turn < turns; ++turn) {
                const int mine = together ? rank : turn;
                BackwardEntry entry = value_of_lane(found, mine);
                if (mine != rank || !wait_for(value_of_lane(task, mine), first + mine)) {
                    entry.is_dry = true;
                }
                put(entry);
            }
        }
        put(BackwardEntry{});
        if (lane() == 0) add_times(p_, waited_ns_, start);
    }

  private:
    __device__ static int lane() {
        return threadIdx.x % 32;
    }

    // Of tasks that differ in even and odd lanes: whether neither waits for the other, and both
    // take as many stages.
    __device__ static bool run_together(const BackwardEntry& e) {
        return same_of_pair(static_cast<int32_t>(e.kind)) && same_of_pair(e.shared) &&
               same_of_pair(e.piece) && same_of_pair(e.steps) && same_of_pair(e.k_blocks);
    }
    // Of tasks that run together.
    __device__ static bool have_same_b(const BackwardEntry& e) {
        if (plan::is_wgrad(e.kind)) return same_of_pair(e.at.col);
        return same_of_pair(e.part) && same_of_pair(e.expert);
    }

    // False: the wait has expired. The CTA still keeps step with the other one.
    __device__ bool wait_for(const plan::Task& task, int64_t i) {
        if (p_.disturbance.stall_seed != 0) {
            if (lane() == 0) stall(p_, plan::Role::Compute, static_cast<uint32_t>(i));
            __syncwarp();
        }
        const uint64_t begin = arch::nanoseconds();
        // Signals only grow: what one task of a piece waited for holds for the next.
        const bool known =
            plan::is_wgrad(task.kind) && task.kind == waited_.kind && task.piece == waited_.piece;
        const bool met = known || wait_by_warp(p_, task);
        if (met) waited_ = task;
        waited_ns_ += arch::nanoseconds() - begin;
        return met;
    }

    __device__ void put(const BackwardEntry& entry) {
        arch::barrier_wait(&smem_.entry_empty[at_.index], at_.parity);
        __syncwarp();  // before the arrival that lets the entry go on
        if (lane() == 0) {
            smem_.entries[at_.index] = entry;
            arch::barrier_arrive(&smem_.entry_full[at_.index]);
        }
        __syncwarp();
        at_.advance();
    }

    const BackwardParams& p_;
    BackwardSharedMemory& smem_;
    arch::Cluster cluster_;
    arch::RingState<kEntries> at_;
    plan::Task waited_{plan::TaskKind::Replay, -1, -1, -1, -1};
    uint64_t waited_ns_ = 0;
};

// The teller role: one thread of every CTA makes finished tasks known, so that no consumer waits
// for a release in the middle of its products. The consumers' stores -> entry_done -> this thread's
// release -> whoever sees the count.
__device__ inline void run_teller(const BackwardParams& p, BackwardSharedMemory& smem) {
    arch::RingState<kEntries> at;
    while (true) {
        arch::barrier_wait(&smem.entry_full[at.index], at.parity);
        const BackwardEntry e = smem.entries[at.index];
        if (!e.more) return;
        const plan::Task task{e.kind, e.tile, e.part, -1, e.piece};
        arch::barrier_wait(&smem.entry_done[at.index], at.parity);
        if (!e.is_dry) {
            plan::for_each_arrival(p.pass, task, [&](const plan::Arrival& a) { arrive(p, a); });
            if (p.traced) {
                trace_task(p, task, smem.times[at.index].begin, smem.times[at.index].multiplied);
            }
        }
        arch::barrier_arrive(&smem.entry_empty[at.index]);
        at.advance();
    }
}

}  // namespace mok::kernels
