#pragma once

#include "kernels/backward_scheduler.cuh"
#include "kernels/fp8_units.cuh"

// The scheduler role of a backward in Fp8Block: that of the other precisions, which before a
// compute task claims the units whose results the task waits for, and a share of those that the
// tasks behind it will: so units and products take turns on every multiprocessor.
namespace mok::kernels {

// Waits until `count` units of a kind are done of a tile; a fault names the tile's signal.
__device__ inline bool wait_for_units(const Fp8BackwardParams& p, const plan::Task& task,
                                      UnitKind kind, int32_t tile, uint32_t count) {
    const uint32_t* done = units_done(p, kind, tile);
    uint64_t begin = 0;
    for (uint32_t polls = 0;; ++polls) {
        const uint32_t have = arch::signal_load(done);
        if (have >= count) return true;
        if ((polls & 63) != 63) continue;
        if (arch::signal_load(p.aborted) != 0) return false;
        const uint64_t now = arch::nanoseconds();
        if (begin == 0) begin = now;
        if (now - begin < p.timeout_ns) continue;
        if (atomicExch(p.aborted, 1u) == 0) {
            const plan::SignalKind signal = kind == UnitKind::DY  ? plan::SignalKind::DYReady
                                            : kind == UnitKind::X ? plan::SignalKind::XReady
                                                                  : plan::SignalKind::HiddenReady;
            p.fault->sm = arch::sm_id();
            p.fault->task = task;
            p.fault->wait = {signal, tile, count};
            p.fault->have = have;
            __threadfence_system();
            p.fault->raised = 1;
        }
        return false;
    }
}

// What a compute task reads of units. By all lanes of a warp.
__device__ inline bool wait_for_units_of(const Fp8BackwardParams& p, const UnitsAhead& ahead,
                                         const plan::Task& task) {
    const int32_t lane = threadIdx.x % 32;
    const auto wait = [&](UnitKind kind, int32_t tile) {
        return wait_for_units(p, task, kind, tile, ahead.of_tile(kind));
    };
    bool met = true;
    for_each_units_read(p.pass, task, [&](UnitKind kind, int32_t begin, int32_t end) {
        for (int32_t tile = begin + lane; tile < end; tile += 32) met = met && wait(kind, tile);
    });
    __syncwarp();
    return __all_sync(~0u, met);
}

class Fp8BackwardScheduler {
  public:
    __device__ Fp8BackwardScheduler(const Fp8BackwardParams& p, Fp8BackwardSharedMemory& smem)
        : p_(p), smem_(smem), ahead_(p.pass), reader_(p.pass) {
        at_.parity = 1;  // an empty queue: the first round of waits passes
    }

    __device__ void run() {
        const ResidentTasks tasks;
        const uint64_t start = arch::nanoseconds();
        bool more = true;
        while (more) {
            uint32_t i = 0;
            if (lane() == 0) i = tasks.next_task(p_, plan::Role::Compute);
            i = __shfl_sync(~0u, i, 0);
            BackwardEntry entry{};
            if (reader_.seek(i)) {
                const plan::Task task = reader_.task();
                if (p_.disturbance.stall_seed != 0) {
                    if (lane() == 0) stall(p_, plan::Role::Compute, i);
                    __syncwarp();
                }
                if (make_units(task) && wait_for_inputs(task)) entry = entry_of(task);
            }
            more = entry.more;
            hand_on(entry);
        }
        if (lane() == 0) add_times(p_, waited_ns_, start);
    }

  private:
    __device__ static int32_t lane() { return threadIdx.x % 32; }

    __device__ void hand_on(const BackwardEntry& entry) {
        arch::barrier_wait(&smem_.entry_empty[at_.index], at_.parity);
        __syncwarp();  // before the arrival that lets the entry go on
        if (lane() == 0) {
            smem_.entries[at_.index] = entry;
            arch::barrier_arrive(&smem_.entry_full[at_.index]);
        }
        __syncwarp();
        at_.advance();
    }

    // False: the pass is over.
    __device__ bool wait_for_inputs(const plan::Task& task) {
        // Signals only grow: what one task of a piece waited for holds for the next.
        if (plan::is_wgrad(task.kind) && task.kind == waited_.kind && task.piece == waited_.piece) {
            return true;
        }
        const uint64_t begin = arch::nanoseconds();
        const bool met = wait_by_warp(p_, task,
                                      [&](auto&& visit) {
                                          plan::for_each_backward_wait(p_.pass, task, visit);
                                      }) &&
                         wait_for_units_of(p_, ahead_, task);
        waited_ns_ += arch::nanoseconds() - begin;
        if (met) waited_ = task;
        return met;
    }
    __device__ BackwardEntry entry_of(const plan::Task& task) const {
        BackwardEntry e = backward_entry(p_, reader_, task);
        const plan::Problem& problem = p_.pass.problem;
        if (plan::is_wgrad(task.kind)) {
            e.k_blocks = e.has_work ? plan::ceil_div(e.num_rows, 128) : 0;
        } else if (task.kind == plan::TaskKind::DownDgrad) {
            e.k_blocks = plan::ceil_div(problem.hidden, 128);
        } else if (task.kind == plan::TaskKind::GateUpDgrad) {
            e.k_blocks = 2 * plan::ceil_div(problem.intermediate, 128);
        }
        return e;
    }

    // ---- Units --------------------------------------------------------------------------------
    // Claims units until as many are claimed as the task wants, and hands on those that this CTA
    // has claimed. False: the pass is over.
    __device__ bool make_units(const plan::Task& task) {
        const UnitsWanted want = ahead_.before(task);
        for (int k = 0; k < plan::kQuantisedKinds; ++k) {
            const UnitKind kind = static_cast<UnitKind>(k);
            while (known_[k] < want.at[k]) {
                const int32_t unit = claim(kind, want.at[k]);
                if (unit >= 0 && !make_unit(task, kind, unit)) return false;
            }
        }
        return true;
    }
    // The next unit below `end`; -1: they are all claimed.
    __device__ int32_t claim(UnitKind kind, int32_t end) {
        int32_t unit = 0;
        if (lane() == 0) {
            uint32_t* const ticket = unit_ticket(p_, kind);
            uint32_t next = arch::signal_peek(ticket);
            while (static_cast<int32_t>(next) < end) {
                const uint32_t found = atomicCAS(ticket, next, next + 1);
                if (found == next) break;
                next = found;
            }
            unit = static_cast<int32_t>(next);
        }
        unit = __shfl_sync(~0u, unit, 0);
        known_[static_cast<int>(kind)] = min(unit + 1, end);
        return unit < end ? unit : -1;
    }
    __device__ bool make_unit(const plan::Task& task, UnitKind kind, int32_t unit) {
        const plan::Problem& problem = p_.pass.problem;
        const plan::RouteTable& table = p_.pass.table;
        const int32_t each = ahead_.of_tile(kind), visit = unit / each;
        const int32_t tile = plan::tile_at_visit(problem, table, visit);
        const uint64_t begin = arch::nanoseconds();
        const bool met = wait_by_warp(
            p_, task, [&](auto&& waits) { for_each_unit_wait(p_.pass, kind, tile, waits); });
        waited_ns_ += arch::nanoseconds() - begin;
        if (!met) return false;
        BackwardEntry e{};
        e.more = true;
        e.tile = tile;
        e.begin = tile * plan::kTileRows;
        e.ring_row = plan::ring_row(problem, e.begin);
        e.at.row = plan::tile_rows(problem, table, tile);
        set_unit(problem, kind, unit - visit * each, e);
        hand_on(e);
        return true;
    }

    const Fp8BackwardParams& p_;
    Fp8BackwardSharedMemory& smem_;
    UnitsAhead ahead_;
    plan::ComputeReader reader_;
    arch::RingState<kEntries> at_;
    plan::Task waited_{plan::TaskKind::Replay, -1, -1, -1, -1};
    int32_t known_[plan::kQuantisedKinds] = {0, 0, 0};  // units that are claimed, at least
    uint64_t waited_ns_ = 0;
};

// A trace has no name of their own for units: that of a task that no backward has.
inline constexpr plan::TaskKind kTracedUnit = plan::TaskKind::GateUp;

// The teller role (backward_scheduler.cuh), of units too.
__device__ inline void run_fp8_teller(const Fp8BackwardParams& p, Fp8BackwardSharedMemory& smem) {
    for_each_entry_done(smem, [&](const BackwardEntry& e, const TaskTimes& times) {
        plan::Task task{e.kind, e.tile, e.part, -1, e.piece};
        if (is_unit(e)) {
            arch::signal_add(units_done(p, kind_of(static_cast<Operand>(e.piece)), e.tile), 1);
            task.kind = kTracedUnit;
        } else {
            plan::for_each_compute_arrival(task, [&](const plan::Arrival& a) { arrive(p, a); });
        }
        if (p.traced) trace_task(p, task, times.begin, times.multiplied);
    });
}

}  // namespace mok::kernels
