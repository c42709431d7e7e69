#include "cli/bench/trace_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace mok::cli {
namespace {

using Interval = std::pair<uint64_t, uint64_t>;  // [begin, end)

// The times when products run on any SM, disjoint and in order.
std::vector<Interval> product_times(const std::vector<TimedTask>& tasks) {
    std::vector<Interval> all, merged;
    for (const TimedTask& t : tasks) {
        if (plan::role_of(t.task.kind) == plan::Role::Compute) {
            all.emplace_back(t.begin_ns, t.products_end_ns());
        }
    }
    std::sort(all.begin(), all.end());
    for (const Interval& i : all) {
        if (!merged.empty() && i.first <= merged.back().second) {
            merged.back().second = std::max(merged.back().second, i.second);
        } else {
            merged.push_back(i);
        }
    }
    return merged;
}

uint64_t time_within(const std::vector<Interval>& disjoint, Interval of) {
    auto it = std::lower_bound(disjoint.begin(), disjoint.end(), of.first,
                               [](const Interval& i, uint64_t at) { return i.second <= at; });
    uint64_t sum = 0;
    for (; it != disjoint.end() && it->first < of.second; ++it) {
        sum += std::min(it->second, of.second) - std::max(it->first, of.first);
    }
    return sum;
}

// When a task's remote bytes move.
Interval transfer_time(const TimedTask& t) {
    return {t.has_epilogue() ? t.multiplied_ns : t.begin_ns, t.end_ns};
}

std::optional<double> hidden_share(const std::vector<TimedTask>& tasks, int64_t remote_bytes) {
    if (remote_bytes == 0) return std::nullopt;
    const std::vector<Interval> products = product_times(tasks);
    double hidden = 0.0;
    for (const TimedTask& t : tasks) {
        const Interval moving = transfer_time(t);
        if (t.remote_bytes == 0 || moving.first == moving.second) continue;
        hidden += static_cast<double>(t.remote_bytes) *
                  static_cast<double>(time_within(products, moving)) /
                  static_cast<double>(moving.second - moving.first);
    }
    return hidden / static_cast<double>(remote_bytes);
}

double us(uint64_t begin, uint64_t end) {
    return static_cast<double>(end - begin) / 1e3;
}

}  // namespace

TraceSummary summary_of(const std::vector<TimedTask>& tasks) {
    TraceSummary summary;
    if (tasks.empty()) return summary;
    std::vector<KindSummary> kinds(plan::kNumTaskKinds);
    std::set<std::pair<int, int>> sms;
    uint64_t first = std::numeric_limits<uint64_t>::max(), last = 0;
    for (const TimedTask& t : tasks) {
        KindSummary& k = kinds[static_cast<size_t>(t.task.kind)];
        k.kind = t.task.kind;
        ++k.tasks;
        k.busy_us += us(t.begin_ns, t.end_ns);
        if (t.has_epilogue()) k.epilogue_us += us(t.multiplied_ns, t.end_ns);
        sms.emplace(t.rank, t.sm);
        first = std::min(first, t.begin_ns);
        last = std::max(last, t.end_ns);
        summary.remote_bytes += t.remote_bytes;
    }
    std::copy_if(kinds.begin(), kinds.end(), std::back_inserter(summary.kinds),
                 [](const KindSummary& k) { return k.tasks > 0; });
    summary.num_sms = static_cast<int>(sms.size());
    summary.span_us = us(first, last);
    summary.hidden_share = hidden_share(tasks, summary.remote_bytes);
    return summary;
}

std::string trace_table(const TraceSummary& s) {
    std::string text =
        fmt::format("trace: {:.1f} us on {} SMs\n\n{:<13}{:>8}{:>10}{:>13}{:>15}\n", s.span_us,
                    s.num_sms, "task", "tasks", "mean us", "epilogue us", "busy us an SM");
    for (const KindSummary& k : s.kinds) {
        const auto tasks = static_cast<double>(k.tasks);
        text +=
            fmt::format("{:<13}{:>8}{:>10.2f}{:>13.2f}{:>15.1f}\n", plan::task_name(k.kind),
                        k.tasks, k.busy_us / tasks, k.epilogue_us / tasks, k.busy_us / s.num_sms);
    }
    if (s.hidden_share) {
        text += fmt::format("bytes from and to other ranks: {}, {:.1f} % while products ran\n",
                            s.remote_bytes, 100.0 * *s.hidden_share);
    } else {
        text += "bytes from and to other ranks: 0\n";
    }
    return text;
}

}  // namespace mok::cli
