#pragma once

#include "arch/launch_control.cuh"
#include "kernels/units.h"
#include "kernels/waiting.cuh"

// Where the roles of a CTA take their tasks from: next_task() gives the next task of a role's
// program, in its order, or a number beyond its end. One thread of a role calls it. The forward's
// scheduler has Tickets (pair.cuh) on Hopper and LaunchedTickets on Blackwell, which are used
// alike.
namespace mok::kernels {

inline constexpr uint32_t kNoTask = ~uint32_t{0};

__device__ inline uint32_t take_ticket(const PassParams& p, plan::Role role) {
    return atomicAdd(&p.tickets[static_cast<int>(role)], 1u);
}

// Hopper: every CTA is resident and stays to the end of the program.
struct ResidentTasks {
    __device__ int32_t num_ctas() const { return static_cast<int32_t>(gridDim.x); }
    __device__ uint32_t next_task(const PassParams& p, plan::Role role) const {
        return take_ticket(p, role);
    }
    __device__ void end() const {}
};

// Blackwell: the grid has more CTAs than the GPU has room for; see units.h.

// Of a CTA, in shared memory.
struct LaunchControl {
    arch::CancelResponse response;
    arch::Barrier answered;  // the hardware -> scheduler
    uint32_t leaving;        // scheduler -> exchange: take no more tasks
};
__device__ inline void init_launch_control(LaunchControl& control) {
    arch::barrier_init(&control.answered, 1);
    control.leaving = 0;
}
// The CTA takes no more tasks.
__device__ inline void leave(LaunchControl& control) {
    *static_cast<volatile uint32_t*>(&control.leaving) = 1;
}

// The Launcher of units.h.
class HardwareLauncher {
  public:
    __device__ HardwareLauncher(const PassParams& p, LaunchControl& control)
        : begun_(&p.tickets[plan::kNumRoles]), control_(&control) {}

    __device__ uint32_t begin_unit() { return atomicAdd(begun_, 1u) + 1; }
    __device__ void ask() { arch::ask_to_cancel(&control_->response, &control_->answered); }
    __device__ bool answer() {
        arch::barrier_wait(&control_->answered, parity_);
        parity_ ^= 1;
        return arch::was_cancelled(&control_->response);
    }
    __device__ bool all_begun(uint32_t total) const {
        // Longer than a CTA needs from its launch to its first instruction.
        constexpr uint64_t kPatienceNs = 4000;
        const uint64_t start = arch::nanoseconds();
        while (arch::signal_load(begun_) < total) {
            if (arch::nanoseconds() - start > kPatienceNs) return false;
        }
        return true;
    }

  private:
    uint32_t* begun_;
    LaunchControl* control_;
    uint32_t parity_ = 0;
};

// Compute tasks for as long as the CTA stays. In clusters of `ctas` a ticket stands for as many
// tasks and a unit for a cluster, of which one CTA asks.
class LaunchedTasks {
  public:
    __device__ LaunchedTasks(const PassParams& p, LaunchControl& control, uint32_t ctas = 1)
        : control_(control),
          units_(gridDim.x / ctas,
                 tickets_per_unit(plan::count(p.pass, plan::Role::Compute), gridDim.x),
                 HardwareLauncher(p, control)) {}

    // kNoTask: the CTA leaves.
    __device__ uint32_t next_task(const PassParams& p, plan::Role role) {
        if (units_.take()) return take_ticket(p, role);
        leave(control_);
        left_ = true;
        return kNoTask;
    }
    __device__ void end() {
        if (!left_) units_.end();
    }

  private:
    LaunchControl& control_;
    Units<HardwareLauncher> units_;
    bool left_ = false;
};

// The forward's scheduler's, as Tickets of pair.cuh.
class LaunchedTickets {
  public:
    static constexpr bool kMultipliesAsOne = false;

    __device__ LaunchedTickets(const PassParams& p, LaunchControl& control)
        : p_(p), tasks_(p, control) {}
    __device__ void begin() const {}
    __device__ uint32_t next() {
        if (arch::signal_peek(p_.aborted) != 0) return kNoTask;
        return tasks_.next_task(p_, plan::Role::Compute);
    }
    __device__ void end() { tasks_.end(); }

  private:
    const PassParams& p_;
    LaunchedTasks tasks_;
};

// The exchange's.
class LaunchedExchange {
  public:
    __device__ explicit LaunchedExchange(LaunchControl& control) : control_(control) {}
    // At a time, at most.
    __device__ int32_t num_ctas() const {
        return min(static_cast<int32_t>(gridDim.x), arch::num_sms());
    }
    __device__ uint32_t next_task(const PassParams& p, plan::Role role) const {
        const bool leaving = *static_cast<volatile uint32_t*>(&control_.leaving) != 0;
        return leaving ? kNoTask : take_ticket(p, role);
    }

  private:
    LaunchControl& control_;
};

}  // namespace mok::kernels
