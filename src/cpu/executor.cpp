#include "cpu/executor.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace mok::cpu {

void Signals::clear() {
    std::fill_n(counts_, plan::num_signals(problem_), 0u);
}

std::optional<plan::Wait> Signals::missing(const plan::Pass& pass, const plan::Task& task) const {
    std::optional<plan::Wait> first;
    plan::for_each_wait(pass, task, [&](const plan::Wait& wait) {
        if (!first && value(wait.kind, wait.index) < wait.want) first = wait;
    });
    return first;
}

namespace {

using Clock = std::chrono::steady_clock;

// What the workers of one pass share.
struct Shared {
    const plan::Pass& pass;
    Signals& signals;
    const ExecutorOptions& options;
    const std::function<void(const plan::Task&)>& run;
    int64_t num_tasks[plan::kNumRoles] = {};
    std::atomic<int64_t> ticket[plan::kNumRoles] = {0, 0};
    std::atomic<int64_t> num_started{0};
    std::atomic<int64_t> num_ended{0};
    std::atomic<bool> stop{false};
    std::mutex mutex{};
    std::exception_ptr error{};
    std::optional<comm::Fault> fault{};

    void fail(std::exception_ptr e) {
        std::lock_guard lock(mutex);
        if (!error) error = e;
        stop = true;
    }
    void fail(const comm::Fault& f) {
        std::lock_guard lock(mutex);
        if (!fault) fault = f;
        stop = true;
    }
};

// Backs off from yielding to short sleeps, and tells how long nothing has ended in the whole rank.
class Idle {
  public:
    double pause(const Shared& shared) {
        const int64_t ended = shared.num_ended.load(std::memory_order_relaxed);
        if (ended != last_ended_) {
            last_ended_ = ended;
            since_ = Clock::now();
        }
        if (++rounds_ < 32) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(rounds_ < 256 ? 20 : 200));
        }
        return std::chrono::duration<double>(Clock::now() - since_).count();
    }
    void reset() {
        rounds_ = 0;
        since_ = Clock::now();
    }

  private:
    int rounds_ = 0;
    int64_t last_ended_ = -1;
    Clock::time_point since_ = Clock::now();
};

void run_one(Shared& shared, const plan::Task& task, std::mt19937_64& random) {
    const Diagnostics& diagnostics = shared.options.diagnostics;
    const int64_t number = shared.num_started.fetch_add(1);
    if (number == diagnostics.die_after_tasks) throw InjectedDeath("this rank was told to die");
    if (diagnostics.stall_seed != 0 && random() % 8 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    }
    shared.run(task);
    if (number != diagnostics.lose_arrivals_of) {
        plan::for_each_arrival(shared.pass, task,
                               [&](const plan::Arrival& a) { shared.signals.arrive(a); });
    }
    shared.num_ended.fetch_add(1, std::memory_order_relaxed);
}

comm::Fault fault_of(const Shared& shared, int worker, const plan::Task& task,
                     const plan::Wait& wait, double waited) {
    return {shared.pass.problem.rank,
            worker,
            task,
            wait,
            shared.signals.value(wait.kind, wait.index),
            waited};
}

// Claims tasks of both roles in program order. Communication is looked at first: it is short, and
// others wait for it.
void work_in_order(Shared& shared, int worker) {
    std::mt19937_64 random(shared.options.diagnostics.stall_seed + 7919 * (worker + 1) +
                           104729 * shared.pass.problem.rank);
    const plan::Role roles[] = {plan::Role::Comm, plan::Role::Compute};
    plan::Task next[plan::kNumRoles] = {};
    int64_t decoded[plan::kNumRoles] = {-1, -1};
    Idle idle;
    while (!shared.stop) {
        bool all_claimed = true, ran = false;
        const plan::Task* blocked = nullptr;
        for (const plan::Role role : roles) {
            const int r = static_cast<int>(role);
            int64_t i = shared.ticket[r].load(std::memory_order_relaxed);
            if (i >= shared.num_tasks[r]) continue;
            all_claimed = false;
            if (decoded[r] != i) next[r] = plan::decode(shared.pass, role, decoded[r] = i);
            if (shared.signals.missing(shared.pass, next[r])) {
                blocked = &next[r];
                continue;
            }
            ran = true;  // or another worker took it: there is progress either way
            if (!shared.ticket[r].compare_exchange_strong(i, i + 1)) continue;
            run_one(shared, next[r], random);
        }
        if (all_claimed) return;
        if (ran) {
            idle.reset();
            continue;
        }
        const double waited = idle.pause(shared);
        if (waited > shared.options.timeout.count()) {
            const std::optional<plan::Wait> wait = shared.signals.missing(shared.pass, *blocked);
            if (wait) return shared.fail(fault_of(shared, worker, *blocked, *wait, waited));
        }
        if (shared.options.stopped()) return;
    }
}

// Runs all tasks one by one, each time a random one among those that are ready.
void work_in_random_order(Shared& shared) {
    std::mt19937_64 random(shared.options.diagnostics.order_seed);
    std::vector<plan::Task> open;
    for (const plan::Role role : {plan::Role::Compute, plan::Role::Comm}) {
        for (int64_t i = 0; i < shared.num_tasks[static_cast<int>(role)]; ++i) {
            open.push_back(plan::decode(shared.pass, role, i));
        }
    }
    while (!open.empty()) {
        const size_t start = random() % open.size();
        size_t found = open.size();
        for (size_t k = 0; k < open.size() && found == open.size(); ++k) {
            const size_t at = (start + k) % open.size();
            if (!shared.signals.missing(shared.pass, open[at])) found = at;
        }
        // One worker: what is not ready now never will be.
        if (found == open.size()) {
            const plan::Wait wait = *shared.signals.missing(shared.pass, open[start]);
            return shared.fail(fault_of(shared, 0, open[start], wait, 0.0));
        }
        const plan::Task task = open[found];
        open[found] = open.back();
        open.pop_back();
        run_one(shared, task, random);
    }
}

}  // namespace

std::optional<comm::Fault> execute(const plan::Pass& pass, Signals& signals,
                                   const ExecutorOptions& options,
                                   const std::function<void(const plan::Task&)>& run) {
    signals.clear();
    Shared shared{.pass = pass, .signals = signals, .options = options, .run = run};
    for (const plan::Role role : {plan::Role::Compute, plan::Role::Comm}) {
        shared.num_tasks[static_cast<int>(role)] = plan::count(pass, role);
    }
    const bool in_order = options.diagnostics.order_seed == 0;
    const auto work = [&](int worker) {
        try {
            in_order ? work_in_order(shared, worker) : work_in_random_order(shared);
        } catch (...) {
            shared.fail(std::current_exception());
        }
    };
    {
        std::vector<std::jthread> others;
        for (int worker = 1; in_order && worker < options.num_workers; ++worker) {
            others.emplace_back(work, worker);
        }
        work(0);
    }
    if (shared.error) std::rethrow_exception(shared.error);
    return shared.fault;
}

}  // namespace mok::cpu
