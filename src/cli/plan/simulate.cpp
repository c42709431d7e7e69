#include "cli/plan/simulate.h"

#include <queue>
#include <stdexcept>

#include "math/bf16.h"
#include "plan/signals.h"
#include "plan/traffic.h"

namespace mok::cli {
namespace {

using plan::TaskKind;

// Floating-point operations of a whole tile of a compute task.
double flops_of(const plan::Pass& pass, const plan::Task& task) {
    const plan::Problem& p = pass.problem;
    const bool wgrad = plan::is_wgrad(task.kind);
    const bool shared = wgrad ? task.piece < 0 : plan::is_shared_tile(p, task.tile);
    const double hidden = p.hidden, width = plan::width_of(p, shared);
    const double tile = 2.0 * plan::kTileRows * plan::kOutCols;  // of one step of k
    switch (task.kind) {
        case TaskKind::GateUp:
        case TaskKind::Replay:  // 128 columns of gate and of up
        case TaskKind::DownDgrad:
            return tile * hidden;
        case TaskKind::Down:
            return tile * width;
        case TaskKind::GateUpDgrad:
            return tile * 2.0 * width;
        default:
            break;
    }
    double rows = 1.0 * plan::shared_tiles(p) * plan::kTileRows;
    if (!shared) {
        const plan::Piece piece = plan::piece_at(p, pass.table, task.macro, task.piece);
        rows = piece.end - piece.begin;
    }
    return 2.0 * plan::kWgradRows * plan::kWgradCols * rows;
}

// Seconds that one worker of all takes for the rows of a communication task.
double comm_seconds(const plan::Pass& pass, const plan::Task& task, const SimulationRates& rates) {
    const plan::Problem& p = pass.problem;
    const plan::RouteTable& t = pass.table;
    const bool dispatch = task.kind == TaskKind::DispatchX || task.kind == TaskKind::DispatchDY;
    const auto row_bytes = static_cast<double>(dispatch ? plan::pulled_row_bytes(p, pass.kind)
                                                        : plan::bf16_row_bytes(p));
    const int32_t begin = plan::first_comm_slot(task);
    double seconds = 0.0;
    for (int32_t slot = begin; slot < begin + plan::kCommRows; ++slot) {
        if (t.slot_home[slot] < 0 || (dispatch && t.slot_lead[slot] != slot)) continue;
        const bool local = t.slot_home[slot] == p.rank;
        seconds += row_bytes / ((local ? rates.local_gbs : rates.link_gbs) * 1e9);
    }
    return seconds * rates.comm_workers;
}

int minibatch_of(const plan::Pass& pass, const plan::Task& task) {
    const plan::Problem& p = pass.problem;
    if (plan::is_wgrad(task.kind) || plan::is_shared_tile(p, task.tile)) return -1;
    const plan::MiniSequence sequence = plan::routed_sequence(pass);
    const int32_t visit = plan::visit_of_tile(p, pass.table, task.tile);
    const int32_t macro = visit / sequence.macro_tiles;
    const int32_t order = sequence.walks_down ? sequence.num_macros() - 1 - macro : macro;
    return sequence.first_mini(order) +
           (visit - macro * sequence.macro_tiles) / sequence.mini_tiles;
}

struct Worker {
    plan::Role role;
    int number;  // of its role
    plan::Task task{};
};
struct Completion {
    double time_s;
    int64_t order;  // of starting, so that equal times have one order
    int worker;
    bool operator>(const Completion& o) const {
        return time_s != o.time_s ? time_s > o.time_s : order > o.order;
    }
};

class Simulation {
  public:
    Simulation(const plan::Pass& pass, int num_sms, const SimulationRates& rates)
        : pass_(pass),
          rates_(rates),
          num_sms_(num_sms),
          counts_(plan::num_signals(pass.problem)),
          waiters_(counts_.size()) {
        for (int i = 0; i < num_sms; ++i) workers_.push_back({plan::Role::Compute, i});
        for (int i = 0; i < rates.comm_workers; ++i) workers_.push_back({plan::Role::Comm, i});
    }

    Timeline run() {
        for (int w = 0; w < static_cast<int>(workers_.size()); ++w) claim(w);
        while (!running_.empty()) {
            const Completion done = running_.top();
            running_.pop();
            now_s_ = done.time_s;
            plan::for_each_arrival(pass_, workers_[done.worker].task,
                                   [this](const plan::Arrival& a) { arrive(a); });
            claim(done.worker);
        }
        for (const plan::Role role : {plan::Role::Compute, plan::Role::Comm}) {
            const int r = static_cast<int>(role);
            if (std::ssize(timeline_.spans[r]) != plan::count(pass_, role)) {
                throw std::logic_error("simulation: tasks wait for each other");
            }
        }
        timeline_.end_s = now_s_;
        return std::move(timeline_);
    }

  private:
    void claim(int w) {
        const int role = static_cast<int>(workers_[w].role);
        if (ticket_[role] >= plan::count(pass_, workers_[w].role)) return;
        workers_[w].task = plan::decode(pass_, workers_[w].role, ticket_[role]++);
        start_or_wait(w);
    }

    void start_or_wait(int w) {
        const plan::Task& task = workers_[w].task;
        int32_t missing = -1;
        plan::for_each_wait(pass_, task, [&](const plan::Wait& wait) {
            const int32_t at = plan::signal_index(pass_.problem, wait.kind, wait.index);
            if (missing < 0 && counts_[at] < wait.want) missing = at;
        });
        if (missing >= 0) {
            waiters_[missing].push_back(w);
            return;
        }
        const bool computes = workers_[w].role == plan::Role::Compute;
        const double seconds = computes ? flops_of(pass_, task) * num_sms_ / (rates_.tflops * 1e12)
                                        : comm_seconds(pass_, task, rates_);
        const bool shared = plan::is_wgrad(task.kind)
                                ? task.piece < 0
                                : plan::is_shared_tile(pass_.problem, task.tile);
        const int role = static_cast<int>(workers_[w].role);
        timeline_.spans[role].push_back({task, workers_[w].number, minibatch_of(pass_, task),
                                         shared, now_s_, now_s_ + seconds});
        timeline_.busy_s[role] += seconds;
        running_.push({now_s_ + seconds, num_started_++, w});
    }

    void arrive(const plan::Arrival& a) {
        const int32_t at = plan::signal_index(pass_.problem, a.kind, a.index);
        counts_[at] += a.count;
        std::vector<int> woken;
        woken.swap(waiters_[at]);
        for (const int w : woken) start_or_wait(w);
    }

    const plan::Pass& pass_;
    const SimulationRates& rates_;
    int num_sms_;
    std::vector<uint32_t> counts_;
    std::vector<std::vector<int>> waiters_;  // by signal
    std::vector<Worker> workers_;
    std::priority_queue<Completion, std::vector<Completion>, std::greater<>> running_;
    int64_t ticket_[plan::kNumRoles] = {};
    int64_t num_started_ = 0;
    double now_s_ = 0.0;
    Timeline timeline_;
};

}  // namespace

Timeline simulate(const plan::Pass& pass, int num_sms, const SimulationRates& rates) {
    return Simulation(pass, num_sms, rates).run();
}

}  // namespace mok::cli
