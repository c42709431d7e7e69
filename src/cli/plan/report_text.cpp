#include <fmt/format.h>

#include <algorithm>

#include "cli/plan/report.h"

namespace mok::cli {
namespace {

// Bytes in the largest unit that leaves at least one before the point.
std::string bytes_text(int64_t bytes) {
    constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < std::size(kUnits)) {
        value /= 1024.0;
        ++unit;
    }
    return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string heading(const std::string& text) {
    return fmt::format("\n{}\n", text);
}
std::string byte_line(const std::string& what, int64_t bytes, const std::string& remark = "") {
    const std::string line =
        fmt::format("  {:<30}{:>18} B{:>13}   {}", what, bytes, bytes_text(bytes), remark);
    return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

std::string request_text(const PlanRequest& r) {
    const LayerShape& s = r.shape;
    std::string text = fmt::format("plan of {}: hidden {}, intermediate {}, experts {}, top-k {}, ",
                                   r.model, s.hidden, s.intermediate, s.num_experts, s.top_k);
    text += s.shared_intermediate > 0 ? fmt::format("shared expert {}\n", s.shared_intermediate)
                                      : std::string("no shared expert\n");
    text += fmt::format("{} tokens on each of {} rank{}, {} SMs a rank", r.tokens_per_rank,
                        r.num_ranks, r.num_ranks == 1 ? "" : "s", r.num_sms);
    return text + (s.precision == Precision::BF16
                       ? std::string("\n")
                       : fmt::format("; {}\n", precision_name(s.precision)));
}

std::string granularity_text(const PlanReport& report) {
    std::string text = heading("granularity: minibatch rows for two full waves per phase");
    text += fmt::format("  {:<10}{:>8}{:>10}{:>8}\n", "", "floor", "in tiles", "used");
    for (const auto& [name, rows] :
         {std::pair("forward", report.forward_rows), std::pair("backward", report.backward_rows)}) {
        text += fmt::format("  {:<10}{:>8}{:>10}{:>8}\n", name, rows.rule.floor_rows,
                            rows.rule.default_rows, rows.used);
    }
    return text;
}

std::string memory_text(const PlanReport& report) {
    const RankMemory& m = report.memory;
    const PlanRequest& r = report.request;
    std::string text = heading("memory of a rank (any routing fits)");
    text += byte_line("window, read by peers", m.window.total, "x, d_y, ids, weights, y/d_x");
    const bool fp8 = r.shape.precision != Precision::BF16;
    if (fp8) text += byte_line("  x in FP8", m.fp8_window_bytes, "elements and scales");
    text += byte_line("ring", m.ring_bytes, fmt::format("{} rows", m.ring_rows));
    if (fp8) text += byte_line("  rows in FP8", m.fp8_ring_bytes, "elements and scales");
    if (m.scratch_bytes > 0) {
        text += byte_line("weight-gradient scratch", m.scratch_bytes, "one expert, FP32");
    }
    if (m.shared_bytes > 0) text += byte_line("shared expert's rows", m.shared_bytes);
    text += byte_line("signals", m.signal_bytes);
    text +=
        byte_line("workspace", m.window.total + m.workspace.total, "the sum; one for all layers");
    text += byte_line("on a GPU", m.cuda_workspace_bytes,
                      "no rows of y and d_x; the route table's builder");
    if (fp8) {
        text += byte_line("FP8 weights", m.fp8_weight_bytes, "a layer, both orientations");
        if (m.mxfp8_operand_bytes > 0) {
            text += byte_line("  as BF16 numbers", m.mxfp8_operand_bytes, "on Hopper");
        }
    }
    text += byte_line("route table of a call", m.table_bytes);
    for (const RoutingReport& routing : report.routings) {
        const std::string name = routing_name(routing.traffic.routing);
        const ContextBytes& c = routing.context;
        text += byte_line("context, " + name, c.forward, "a call, largest rank");
        if (r.num_layers * r.in_flight > 1) {
            text +=
                byte_line(fmt::format("  x {} layers x {} in flight", r.num_layers, r.in_flight),
                          c.forward * r.num_layers * r.in_flight);
        }
    }
    text += byte_line("context, every route here", m.context_bytes, "the worst case");
    return text;
}

std::string load_text(const RoutingReport& routing) {
    const std::vector<RankLoad>& loads = routing.traffic.loads;
    const auto fewer = [](const RankLoad& a, const RankLoad& b) { return a.rows < b.rows; };
    const auto [low, high] = std::minmax_element(loads.begin(), loads.end(), fewer);
    const int64_t rows = routing.total_rows(), padding = routing.total_slots() - rows;
    return fmt::format(
        "  rows of a rank: min {}, mean {:.1f}, max {} (rank {}: {} macrobatch{})\n"
        "  padding: {} rows, {:.2f} % of the real ones\n",
        low->rows, static_cast<double>(rows) / static_cast<double>(loads.size()), high->rows,
        routing.traffic.busiest_rank, high->macrobatches, high->macrobatches == 1 ? "" : "es",
        padding, rows == 0 ? 0.0 : 100.0 * static_cast<double>(padding) / rows);
}

std::string matrix_text(const std::vector<int64_t>& bytes, int num_ranks) {
    std::string text = fmt::format("    {:>9}", "from\\to");
    for (int to = 0; to < num_ranks; ++to) text += fmt::format(" {:>13}", to);
    text += "\n";
    for (int from = 0; from < num_ranks; ++from) {
        text += fmt::format("    {:>9}", from);
        for (int to = 0; to < num_ranks; ++to) {
            text += fmt::format(" {:>13}", bytes[int64_t{from} * num_ranks + to]);
        }
        text += "\n";
    }
    return text;
}

std::string links_text(const Traffic& traffic, bool all_links) {
    if (traffic.num_ranks == 1) return "  links: none, one rank\n";
    std::string text =
        fmt::format("  {:<29}{:>12}{:>12}{:>12}{:>9}{:>12}{:>12}{:>12}\n", "bytes over a link",
                    "min", "mean", "max", "busiest", "most sent", "received", "all links");
    std::string matrices;
    for (const plan::PassKind pass : {plan::PassKind::Forward, plan::PassKind::Backward}) {
        for (const plan::Copies copies : {plan::Copies::OnePerGroup, plan::Copies::OnePerRoute}) {
            const std::vector<int64_t> bytes = traffic.link_bytes(pass, copies);
            const LinkSummary s = summary_of(bytes, traffic.num_ranks);
            const std::string name = fmt::format(
                "{}, {}", plan::is_backward(pass) ? "backward" : "forward",
                copies == plan::Copies::OnePerGroup ? "one copy a rank" : "a copy a choice");
            text += fmt::format(
                "  {:<29}{:>12}{:>12}{:>12}{:>9}{:>12}{:>12}{:>12}\n", name, bytes_text(s.min),
                bytes_text(static_cast<int64_t>(s.mean)), bytes_text(s.max),
                fmt::format("{}->{}", s.busiest_source, s.busiest_destination),
                bytes_text(s.most_sent), bytes_text(s.most_received), bytes_text(s.total));
            if (all_links) {
                matrices += "  " + name + ", bytes\n" + matrix_text(bytes, traffic.num_ranks);
            }
        }
    }
    return text + matrices;
}

std::string tasks_text(const RoutingReport& routing, int num_sms) {
    std::string text = fmt::format("  {:<29}{:>12}{:>12}{:>22}\n",
                                   fmt::format("tasks of rank {}", routing.traffic.busiest_rank),
                                   "tasks", "waves", "waves of a minibatch");
    for (const PassTasks& pass : routing.passes) {
        for (const KindTasks& k : pass.kinds) {
            const bool computes = plan::role_of(k.kind) == plan::Role::Compute;
            const auto waves = [&](int64_t tasks) {
                return computes && tasks > 0
                           ? fmt::format("{:.2f}", static_cast<double>(tasks) / num_sms)
                           : std::string("-");
            };
            text += fmt::format(
                "  {:<29}{:>12}{:>12}{:>22}\n",
                fmt::format("{} {}{}", plan::is_backward(pass.pass) ? "backward" : "forward",
                            plan::task_name(k.kind), k.shared ? ", shared" : ""),
                k.tasks, waves(k.tasks), k.shared ? "-" : waves(k.minibatch_tasks));
        }
    }
    return text;
}

}  // namespace

std::string report_text(const PlanReport& report, bool all_links) {
    std::string text = request_text(report.request);
    text += granularity_text(report);
    text += memory_text(report);
    for (const RoutingReport& routing : report.routings) {
        text += heading(fmt::format("routing {} (seed {})", routing_name(routing.traffic.routing),
                                    report.request.seed));
        text += load_text(routing);
        text += links_text(routing.traffic, all_links);
        text += tasks_text(routing, report.request.num_sms);
    }
    return text;
}

}  // namespace mok::cli
