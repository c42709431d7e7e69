#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "comm/fault.h"
#include "openmok/diagnostics.h"
#include "plan/program.h"
#include "plan/signals.h"

namespace mok::cpu {

// One rank's signals, in the workspace's memory; zero at the start of a pass. Arrivals release,
// waits acquire: what a task wrote before it arrived is visible to whoever saw the count.
class Signals {
  public:
    // counts: num_signals(problem) counters.
    Signals(const plan::Problem& problem, uint32_t* counts) : problem_(problem), counts_(counts) {}
    void clear();
    uint32_t value(plan::SignalKind kind, int32_t index) const {
        return at(kind, index).load(std::memory_order_acquire);
    }
    void arrive(const plan::Arrival& a) {
        at(a.kind, a.index).fetch_add(a.count, std::memory_order_release);
    }
    // The first wait of a task that is not met yet.
    std::optional<plan::Wait> missing(const plan::Pass& pass, const plan::Task& task) const;

  private:
    std::atomic_ref<uint32_t> at(plan::SignalKind kind, int32_t index) const {
        return std::atomic_ref(counts_[plan::signal_index(problem_, kind, index)]);
    }

    plan::Problem problem_;
    uint32_t* counts_;
};

struct ExecutorOptions {
    int num_workers;                        // threads, the caller's included
    std::chrono::duration<double> timeout;  // without any task of the rank ending
    Diagnostics diagnostics;
    std::function<bool()> stopped;  // asked while idle: end early, another rank failed
};

// Interprets a pass's program: each worker claims the next task of either role by that role's
// ticket once its waits are met, runs it and arrives. Returns the fault where no task could start
// or end for the bound; throws InjectedDeath, and what `run` throws.
std::optional<comm::Fault> execute(const plan::Pass& pass, Signals& signals,
                                   const ExecutorOptions& options,
                                   const std::function<void(const plan::Task&)>& run);

}  // namespace mok::cpu
