#include "cli/bench/traced_pass.h"

#include <algorithm>
#include <map>
#include <string>

#include "openmok/error.h"
#include "plan/make_problem.h"

namespace mok::cli {
namespace {

plan::TaskKind kind_of(const std::string& name) {
    for (int32_t i = 0; i < plan::kNumTaskKinds; ++i) {
        const auto kind = static_cast<plan::TaskKind>(i);
        if (name == plan::task_name(kind)) return kind;
    }
    throw Error("trace: expected a task of the plan, found \"" + name + "\"");
}

// An exchange begins a task before it has told the one before it. Here its time begins behind that.
void begin_one_after_the_other(std::vector<TimedTask>& tasks) {
    std::map<int, std::vector<TimedTask*>> of_sm;
    for (TimedTask& t : tasks) {
        if (plan::role_of(t.task.kind) == plan::Role::Comm) of_sm[t.sm].push_back(&t);
    }
    for (auto& [sm, exchanged] : of_sm) {
        std::sort(exchanged.begin(), exchanged.end(),
                  [](const TimedTask* a, const TimedTask* b) { return a->end_ns < b->end_ns; });
        for (size_t i = 1; i < exchanged.size(); ++i) {
            exchanged[i]->begin_ns = std::max(exchanged[i]->begin_ns, exchanged[i - 1]->end_ns);
        }
    }
}

}  // namespace

std::vector<TimedTask> timed_tasks(const BenchCase& c, int rank, BenchPass pass,
                                   const std::vector<TracedTask>& recorded) {
    plan::Problem p = plan::make_problem(c.shape, c.tuning, c.num_ranks, rank, c.tokens_per_rank);
    p.num_tokens = static_cast<int32_t>(c.tokens_per_rank);
    std::vector<const int32_t*> ids;
    for (int r = 0; r < c.num_ranks; ++r) {
        ids.push_back(c.topk_ids.data() + r * c.tokens_per_rank * c.shape.top_k);
    }
    const std::vector<int32_t> tokens(c.num_ranks, p.num_tokens);
    std::vector<int32_t> block(plan::route_table_ints(p));
    plan::RouteTable table = plan::route_table_at(p, block.data());
    plan::build_route_table(p, ids.data(), tokens.data(), table);
    const auto kind =
        pass == BenchPass::Backward ? plan::PassKind::Backward : plan::PassKind::Forward;
    const plan::Pass of{kind, p, table};

    std::vector<TimedTask> tasks;
    for (const TracedTask& r : recorded) {
        TimedTask t;
        t.task = {kind_of(r.kind), r.tile, r.part, -1, -1};
        t.rank = rank;
        t.sm = r.multiprocessor;
        t.begin_ns = r.begin_ns;
        t.multiplied_ns = r.multiplied_ns;
        t.end_ns = r.end_ns;
        t.expert = expert_of(of, t.task);
        t.remote_bytes = remote_bytes_of(of, t.task);
        tasks.push_back(t);
    }
    begin_one_after_the_other(tasks);
    return tasks;
}

}  // namespace mok::cli
