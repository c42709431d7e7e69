#include "cli/plan/report.h"

#include <algorithm>

#include "cli/common/memory_limit.h"
#include "openmok/error.h"
#include "plan/program.h"
#include "plan/validate.h"

namespace mok::cli {
namespace {

void require_plannable(const PlanRequest& request) {
    std::string broken;
    for (const std::string& rule : plan::problems_of(request.shape, request.tuning,
                                                     request.num_ranks, request.tokens_per_rank)) {
        broken += (broken.empty() ? "" : "; ") + rule;
    }
    if (!broken.empty()) throw ShapeError(broken);
    const double routes = static_cast<double>(request.tokens_per_rank * request.shape.top_k) *
                          static_cast<double>(request.num_ranks);
    const double table =
        static_cast<double>(plan::table_bytes(request.problem(0, plan::PassKind::Forward)));
    require_memory(routes * sizeof(int32_t) + num_table_threads(request) * table, "the plan");
}

MinibatchRows pass_rows(const PlanRequest& request, plan::PassKind kind) {
    const LayerShape& s = request.shape;
    const plan::Granularity rule =
        plan::is_backward(kind)
            ? plan::backward_granularity(request.num_sms, s.hidden, s.intermediate)
            : plan::forward_granularity(request.num_sms, s.hidden, s.intermediate);
    return {rule, request.problem(0, kind).minibatch_rows};
}

RankMemory rank_memory(const PlanRequest& request) {
    const plan::Problem p = request.problem(0, plan::PassKind::Forward);
    RankMemory m;
    m.window = plan::window_map(p);
    m.workspace = plan::workspace_map(p);
    m.cuda_workspace_bytes = plan::window_map(p, plan::RunsOn::Gpu).total +
                             plan::workspace_map(p, plan::RunsOn::Gpu).total + plan::cuda_bytes(p);
    m.ring_rows = plan::ring_rows(p);
    m.ring_bytes = m.workspace.wgrad_scratch - m.workspace.x;
    m.fp8_ring_bytes = m.workspace.wgrad_scratch - m.workspace.x8.elements;
    m.fp8_window_bytes = m.window.barrier_flags - m.window.x8.elements;
    m.fp8_weight_bytes = plan::fp8_weights_map(p).total;
    m.mxfp8_operand_bytes = plan::mxfp8_operands_map(p).total;
    m.scratch_bytes = m.workspace.shared_w_hidden - m.workspace.wgrad_scratch;
    m.shared_bytes = m.workspace.signals - m.workspace.shared_w_hidden;
    m.signal_bytes = m.workspace.total - m.workspace.signals;
    m.table_bytes = plan::table_bytes(p);
    const int64_t most = std::min<int64_t>(p.context_rows, plan::max_slots(p));
    m.context_bytes = plan::context_map(p, most, p.num_tokens, false).total;
    return m;
}

ContextBytes context_bytes(const PlanRequest& request, const Traffic& traffic) {
    ContextBytes bytes;
    for (int rank = 0; rank < request.num_ranks; ++rank) {
        const plan::Problem p = request.problem(rank, plan::PassKind::Forward);
        const int64_t rows = traffic.loads[rank].kept_rows;
        const auto total = [&](bool operands) {
            return plan::context_map(p, rows, p.num_tokens, operands).total;
        };
        bytes.forward = std::max(bytes.forward, total(false));
        bytes.with_operands = std::max(bytes.with_operands, total(true));
    }
    return bytes;
}

// Tasks per tile of a kind, 0 for weight gradients.
int64_t tasks_per_tile(const plan::Problem& p, plan::TaskKind kind, bool shared) {
    switch (kind) {
        case plan::TaskKind::GateUp:
        case plan::TaskKind::Replay:
        case plan::TaskKind::Down:
        case plan::TaskKind::DownDgrad:
        case plan::TaskKind::GateUpDgrad:
            return plan::compute_parts(p, kind, shared);
        default:
            return plan::is_wgrad(kind) ? 0 : plan::kCommParts;
    }
}

PassTasks pass_tasks(const plan::Pass& pass) {
    PassTasks all;
    all.pass = pass.kind;
    const plan::Problem& p = pass.problem;
    for (const plan::Role role : {plan::Role::Compute, plan::Role::Comm}) {
        const int64_t count = plan::count(pass, role);
        for (int64_t i = 0; i < count; ++i) {
            const plan::Task task = plan::decode(pass, role, i);
            const bool shared =
                plan::is_wgrad(task.kind) ? task.piece < 0 : plan::is_shared_tile(p, task.tile);
            auto found = std::find_if(all.kinds.begin(), all.kinds.end(), [&](const KindTasks& k) {
                return k.kind == task.kind && k.shared == shared;
            });
            if (found == all.kinds.end()) {
                const int64_t tiles = p.minibatch_rows / plan::kTileRows;
                all.kinds.push_back(
                    {task.kind, shared, 0, tiles * tasks_per_tile(p, task.kind, shared)});
                found = all.kinds.end() - 1;
            }
            ++found->tasks;
        }
    }
    return all;
}

}  // namespace

int64_t RoutingReport::total_rows() const {
    int64_t sum = 0;
    for (const RankLoad& load : traffic.loads) sum += load.rows;
    return sum;
}
int64_t RoutingReport::total_slots() const {
    int64_t sum = 0;
    for (const RankLoad& load : traffic.loads) sum += load.slots;
    return sum;
}

PlanReport plan_report(const PlanRequest& request) {
    require_plannable(request);
    PlanReport report;
    report.request = request;
    report.forward_rows = pass_rows(request, plan::PassKind::Forward);
    report.backward_rows = pass_rows(request, plan::PassKind::Backward);
    report.memory = rank_memory(request);
    for (const Routing routing : {Routing::Balanced, Routing::Zipf}) {
        RoutingReport r;
        const GlobalIds ids = global_ids(request, routing);
        r.traffic = traffic_of(request, routing, ids);
        r.context = context_bytes(request, r.traffic);
        TableMemory memory;
        for (const plan::PassKind kind : {plan::PassKind::Forward, plan::PassKind::Backward}) {
            const plan::Problem p = request.problem(r.traffic.busiest_rank, kind);
            r.passes.push_back(pass_tasks({kind, p, memory.build(p, ids)}));
        }
        report.routings.push_back(std::move(r));
    }
    return report;
}

}  // namespace mok::cli
