#include "cli/plan/traffic.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#include "plan/pass.h"
#include "plan/rows.h"

namespace mok::cli {
namespace {

void count_pass(const plan::Pass& pass, PassRows& rows) {
    const int64_t first = int64_t{pass.problem.rank} * pass.problem.num_ranks;
    const bool back = plan::is_backward(pass.kind);
    for (const plan::TaskKind dispatch : {plan::TaskKind::DispatchX, plan::TaskKind::DispatchDY}) {
        plan::add_rows_pulled(pass, dispatch, plan::Copies::OnePerGroup,
                              rows.pulled_per_group.data() + first);
        plan::add_rows_pulled(pass, dispatch, plan::Copies::OnePerRoute,
                              rows.pulled_per_route.data() + first);
    }
    plan::add_rows_pushed(pass, back ? plan::TaskKind::CombineDX : plan::TaskKind::CombineY,
                          rows.pushed.data() + first);
}

void count_rank(const PlanRequest& request, const GlobalIds& ids, int rank, TableMemory& memory,
                Traffic& traffic) {
    const plan::Problem p = request.problem(rank, plan::PassKind::Forward);
    const plan::RouteTable t = memory.build(p, ids);
    RankLoad& load = traffic.loads[rank];
    for (int32_t e = 0; e < plan::num_local_experts(p); ++e) {
        load.rows += plan::segment_rows(p, t, e);
    }
    load.slots = plan::num_slots(t);
    load.macrobatches = plan::num_macrobatches(p, t);
    load.kept_rows = std::min<int64_t>(load.slots, p.context_rows);
    count_pass({plan::PassKind::Forward, p, t}, traffic.forward);
    count_pass({plan::PassKind::Backward, p, t}, traffic.backward);
}

}  // namespace

GlobalIds global_ids(const PlanRequest& request, Routing routing) {
    const int64_t tokens = request.tokens_per_rank, top_k = request.shape.top_k;
    GlobalIds all;
    all.ids = random_ids(routing, tokens * request.num_ranks, request.shape.num_experts, top_k,
                         request.seed);
    for (int64_t rank = 0; rank < request.num_ranks; ++rank) {
        all.by_rank.push_back(all.ids.data() + rank * tokens * top_k);
        all.num_tokens.push_back(static_cast<int32_t>(tokens));
    }
    return all;
}

// Rank 0 has the most experts.
void TableMemory::reserve(const PlanRequest& request) {
    block_.reserve(plan::route_table_ints(request.problem(0, plan::PassKind::Forward)));
}

int num_table_threads(const PlanRequest& request) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    return std::clamp(cores, 1, request.num_ranks);
}

plan::RouteTable TableMemory::build(const plan::Problem& p, const GlobalIds& ids) {
    block_.resize(plan::route_table_ints(p));
    plan::RouteTable table = plan::route_table_at(p, block_.data());
    // random_ids gives experts below E only.
    plan::build_route_table(p, ids.by_rank.data(), ids.num_tokens.data(), table);
    return table;
}

Traffic traffic_of(const PlanRequest& request, Routing routing, const GlobalIds& ids) {
    Traffic traffic;
    traffic.routing = routing;
    traffic.num_ranks = request.num_ranks;
    const plan::Problem p = request.problem(0, plan::PassKind::Forward);
    traffic.row_bytes = plan::bf16_row_bytes(p);
    traffic.dispatched_bytes = plan::pulled_row_bytes(p, plan::PassKind::Forward);
    traffic.loads.resize(request.num_ranks);
    for (PassRows* rows : {&traffic.forward, &traffic.backward}) {
        for (auto* counts : {&rows->pulled_per_group, &rows->pulled_per_route, &rows->pushed}) {
            counts->resize(int64_t{request.num_ranks} * request.num_ranks);
        }
    }
    {
        std::atomic<int> next{0};
        const auto work = [&](TableMemory& memory) {
            for (int rank = next++; rank < request.num_ranks; rank = next++) {
                count_rank(request, ids, rank, memory, traffic);
            }
        };
        std::vector<TableMemory> memories(num_table_threads(request));
        for (TableMemory& memory : memories) memory.reserve(request);
        std::vector<std::jthread> threads;
        for (size_t i = 1; i < memories.size(); ++i) {
            threads.emplace_back([&, i] { work(memories[i]); });
        }
        work(memories[0]);
    }
    const auto fewer = [](const RankLoad& a, const RankLoad& b) { return a.rows < b.rows; };
    const auto most = std::max_element(traffic.loads.begin(), traffic.loads.end(), fewer);
    traffic.busiest_rank = static_cast<int>(most - traffic.loads.begin());
    return traffic;
}

std::vector<int64_t> Traffic::link_bytes(plan::PassKind pass, plan::Copies copies) const {
    const PassRows& rows = plan::is_backward(pass) ? backward : forward;
    const std::vector<int64_t>& pulled =
        copies == plan::Copies::OnePerGroup ? rows.pulled_per_group : rows.pulled_per_route;
    const int64_t pulled_bytes = plan::is_backward(pass) ? row_bytes : dispatched_bytes;
    std::vector<int64_t> bytes(pulled.size());
    for (int64_t expert_rank = 0; expert_rank < num_ranks; ++expert_rank) {
        for (int64_t home = 0; home < num_ranks; ++home) {
            const int64_t pair = expert_rank * num_ranks + home;
            bytes[home * num_ranks + expert_rank] += pulled[pair] * pulled_bytes;
            bytes[pair] += rows.pushed[pair] * row_bytes;
        }
    }
    return bytes;
}

LinkSummary summary_of(const std::vector<int64_t>& bytes, int num_ranks) {
    LinkSummary s;
    if (num_ranks < 2) return s;
    s.min = std::numeric_limits<int64_t>::max();
    s.max = -1;
    std::vector<int64_t> sent(num_ranks), received(num_ranks);
    for (int from = 0; from < num_ranks; ++from) {
        for (int to = 0; to < num_ranks; ++to) {
            if (from == to) continue;
            const int64_t link = bytes[int64_t{from} * num_ranks + to];
            s.total += link;
            sent[from] += link;
            received[to] += link;
            s.min = std::min(s.min, link);
            if (link > s.max) {
                s.max = link;
                s.busiest_source = from;
                s.busiest_destination = to;
            }
        }
    }
    s.mean = static_cast<double>(s.total) / (static_cast<double>(num_ranks) * (num_ranks - 1));
    s.most_sent = *std::max_element(sent.begin(), sent.end());
    s.most_received = *std::max_element(received.begin(), received.end());
    return s;
}

}  // namespace mok::cli
