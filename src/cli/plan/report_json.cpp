#include <nlohmann/json.hpp>

#include "cli/plan/report.h"

namespace mok::cli {
namespace {

using Json = nlohmann::ordered_json;

Json request_json(const PlanRequest& r) {
    const LayerShape& s = r.shape;
    return {{"shape", r.model},
            {"hidden", s.hidden},
            {"intermediate", s.intermediate},
            {"experts", s.num_experts},
            {"top_k", s.top_k},
            {"shared_intermediate", s.shared_intermediate},
            {"tokens_per_rank", r.tokens_per_rank},
            {"ranks", r.num_ranks},
            {"sms", r.num_sms},
            {"layers", r.num_layers},
            {"in_flight", r.in_flight},
            {"keep_x", r.tuning.keep_x},
            {"precision", precision_name(s.precision)},
            {"seed", r.seed}};
}

Json rows_json(const MinibatchRows& rows) {
    return {{"floor_rows", rows.rule.floor_rows},
            {"default_rows", rows.rule.default_rows},
            {"minibatch_rows", rows.used}};
}

Json memory_json(const RankMemory& m) {
    return {{"window_bytes", m.window.total},
            {"ring_rows", m.ring_rows},
            {"ring_bytes", m.ring_bytes},
            {"fp8_ring_bytes", m.fp8_ring_bytes},
            {"fp8_window_bytes", m.fp8_window_bytes},
            {"fp8_weight_bytes", m.fp8_weight_bytes},
            {"mxfp8_operand_bytes", m.mxfp8_operand_bytes},
            {"wgrad_scratch_bytes", m.scratch_bytes},
            {"shared_bytes", m.shared_bytes},
            {"signal_bytes", m.signal_bytes},
            {"workspace_bytes", m.window.total + m.workspace.total},
            {"cuda_workspace_bytes", m.cuda_workspace_bytes},
            {"table_bytes", m.table_bytes},
            {"max_context_bytes", m.context_bytes}};
}

Json links_json(const Traffic& traffic, plan::PassKind pass, plan::Copies copies, bool all_links) {
    const std::vector<int64_t> bytes = traffic.link_bytes(pass, copies);
    const LinkSummary s = summary_of(bytes, traffic.num_ranks);
    Json json = {{"total_bytes", s.total},
                 {"min_bytes", s.min},
                 {"mean_bytes", s.mean},
                 {"max_bytes", s.max},
                 {"busiest", {s.busiest_source, s.busiest_destination}},
                 {"most_sent_bytes", s.most_sent},
                 {"most_received_bytes", s.most_received}};
    if (!all_links) return json;
    Json matrix = Json::array();
    for (int from = 0; from < traffic.num_ranks; ++from) {
        const auto row = bytes.begin() + int64_t{from} * traffic.num_ranks;
        matrix.push_back(std::vector<int64_t>(row, row + traffic.num_ranks));
    }
    json["bytes"] = matrix;
    return json;
}

Json tasks_json(const PassTasks& pass, int num_sms) {
    Json kinds = Json::array();
    for (const KindTasks& k : pass.kinds) {
        Json kind = {{"kind", plan::task_name(k.kind)}, {"shared", k.shared}, {"tasks", k.tasks}};
        if (plan::role_of(k.kind) == plan::Role::Compute) {
            kind["waves"] = static_cast<double>(k.tasks) / num_sms;
            if (!plan::is_wgrad(k.kind)) {
                kind["waves_per_minibatch"] = static_cast<double>(k.minibatch_tasks) / num_sms;
            }
        }
        kinds.push_back(kind);
    }
    return kinds;
}

Json routing_json(const RoutingReport& routing, const PlanRequest& request, bool all_links) {
    const Traffic& traffic = routing.traffic;
    Json rows = Json::array(), slots = Json::array();
    for (const RankLoad& load : traffic.loads) {
        rows.push_back(load.rows);
        slots.push_back(load.slots);
    }
    Json json = {
        {"routing", routing_name(traffic.routing)},
        {"rows", rows},
        {"padded_rows", slots},
        {"busiest_rank", traffic.busiest_rank},
        {"macrobatches", traffic.loads[traffic.busiest_rank].macrobatches},
        {"context_bytes", routing.context.forward},
        {"context_with_operands_bytes", routing.context.with_operands},
        {"contexts_bytes", routing.context.forward * request.num_layers * request.in_flight}};
    for (const PassTasks& pass : routing.passes) {
        const bool back = plan::is_backward(pass.pass);
        json[back ? "backward" : "forward"] = {
            {"tasks", tasks_json(pass, request.num_sms)},
            {"links_one_copy",
             links_json(traffic, pass.pass, plan::Copies::OnePerGroup, all_links)},
            {"links_copy_per_choice",
             links_json(traffic, pass.pass, plan::Copies::OnePerRoute, all_links)}};
    }
    return json;
}

}  // namespace

std::string report_json(const PlanReport& report, bool all_links) {
    Json json = request_json(report.request);
    json["forward"] = rows_json(report.forward_rows);
    json["backward"] = rows_json(report.backward_rows);
    json["memory"] = memory_json(report.memory);
    json["routings"] = Json::array();
    for (const RoutingReport& routing : report.routings) {
        json["routings"].push_back(routing_json(routing, report.request, all_links));
    }
    return json.dump(2) + "\n";
}

}  // namespace mok::cli
