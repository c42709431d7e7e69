#pragma once

#include <cstdint>

#include "math/host_device.h"

namespace mok::kernels {

// Tickets that a CTA's unit is good for (see below), so that those of a grid of `grid` CTAs cover a
// program of `tasks` compute tasks.
MOK_HD constexpr uint32_t tickets_per_unit(int64_t tasks, uint32_t grid) {
    return static_cast<uint32_t>((tasks + grid - 1) / grid);
}

// How long a CTA of a grid that is larger than the GPU goes on. Each CTA of the grid is a unit,
// good for tickets_per_unit compute tasks; all together cover the program. A running CTA whose unit
// is used up takes over a unit that is not launched yet. Where the hardware refuses although units
// are left, another kernel of higher priority wants the multiprocessor: the CTA leaves, and the
// units that are left are launched when there is room again. Which task is worked on tickets alone
// decide, so the bits do not depend on any of this.
//
// Nothing is left undone: the CTA with the unit that begins last stays until the tickets of both
// roles are used up, and one that leaves has ended what it claimed.
//
// In a grid of clusters a unit is a cluster's, a ticket stands for a task of each of its CTAs, and
// one CTA asks for all.
//
// Launcher: begin_unit() counts a unit of the pass that begins and returns how many have; ask()
// asks the hardware for a unit, answer() waits for what it said (after a refusal neither is called
// again); all_begun(total) says whether all units have begun, and may wait a little for those that
// are about to.
template <class Launcher>
class Units {
  public:
    // Of a CTA that was launched.
    MOK_HD Units(uint32_t total, uint32_t tickets, Launcher launcher)
        : total_(total), tickets_(tickets > 0 ? tickets : 1), launcher_(launcher) {}

    // Whether the CTA takes one more compute task; its own unit begins with the first. Not to be
    // called again after false.
    MOK_HD bool take() {
        if (!begun_) begin();
        if (left_ == 0 && !stays_) renew();
        if (stays_) return true;
        if (left_ == 0) return false;
        // The answer comes while this task is worked on.
        if (--left_ == 0) ask();
        return true;
    }

    // The program has no more compute tasks, as a ticket has shown: launches nobody for nothing.
    MOK_HD void end() {
        while (true) {
            if (!asked_) ask();
            if (!asked_ || !answered_yes()) return;
            launcher_.begin_unit();
        }
    }

  private:
    MOK_HD void begin() {
        begun_ = true;
        left_ = tickets_;
        if (launcher_.begin_unit() == total_) stays_ = true;
    }
    MOK_HD void ask() {
        if (refused_) return;
        launcher_.ask();
        asked_ = true;
    }
    MOK_HD bool answered_yes() {
        asked_ = false;
        if (launcher_.answer()) return true;
        refused_ = true;
        return false;
    }
    MOK_HD void renew() {
        if (!asked_) ask();
        if (asked_ && answered_yes()) {
            begin();
        } else {
            stays_ = launcher_.all_begun(total_);
        }
    }

    uint32_t total_, tickets_, left_ = 0;
    Launcher launcher_;
    bool begun_ = false, asked_ = false, refused_ = false;
    bool stays_ = false;  // to the end of the program
};

}  // namespace mok::kernels
