#include "cli/bench/bench_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>

#include "plan/granularity.h"

namespace mok::cli {
namespace {

using Records = std::vector<RecordedPass>;
using Points = std::map<std::string, std::map<double, double>>;  // line -> x -> y

constexpr double kGib = 0x1p30;

std::vector<io::Series> series_of(const Points& points) {
    std::vector<io::Series> all;
    for (const auto& [name, line] : points) {
        io::Series series{name, {}, {}};
        for (const auto& [x, y] : line) {
            series.x.push_back(x);
            series.y.push_back(y);
        }
        all.push_back(std::move(series));
    }
    return all;
}

std::string devices(const Records& records) {
    std::set<std::string> names;
    for (const RecordedPass& r : records) names.insert(r.device);
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
}

std::string ranks_text(const RecordedPass& r) {
    return r.ranks == 1 ? "" : fmt::format(", R = {}", r.ranks);
}

// What a line is of, without what the x axis shows.
enum class Axis { Minibatch, Tokens, Skew };
std::string line_name(const RecordedPass& r, Axis x) {
    std::string name = fmt::format("{} {}{}", r.shape, r.pass, ranks_text(r));
    if (x != Axis::Tokens) name += fmt::format(", T = {}", r.tokens_per_rank);
    if (x != Axis::Skew && r.routing != "balanced") name += ", " + r.routing;
    return name;
}

// Rows of a minibatch that fill two waves in the pass of a record.
int32_t floor_rows(const RecordedPass& r) {
    const bool backward = r.pass == "backward";
    const auto rule = backward ? plan::backward_granularity : plan::forward_granularity;
    return rule(*r.max_sms, r.hidden, r.intermediate).floor_rows;
}

// A vertical line through the plot.
io::Series upright(const std::string& name, double x, const Points& points) {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const auto& [line, values] : points) {
        for (const auto& [at, y] : values) {
            low = std::min(low, y);
            high = std::max(high, y);
        }
    }
    return {name, {x, x}, {low, high}};
}

io::LineChart minibatch_chart(const Records& records) {
    Points points;
    std::set<int32_t> floors;
    for (const RecordedPass& r : records) {
        if (!r.minibatch_rows || !r.max_sms) continue;
        points[line_name(r, Axis::Minibatch)][static_cast<double>(*r.minibatch_rows)] = r.median_ms;
        floors.insert(floor_rows(r));
    }
    io::LineChart chart{
        "Time against minibatch rows", "minibatch rows", "median ms", series_of(points), {}};
    for (const int32_t floor : floors) {
        chart.series.push_back(
            upright(fmt::format("floor of two full waves: {} rows", floor), floor, points));
    }
    return chart;
}

// Peer's median over the layer's, at x(record) where that is a number.
Points speedups(const Records& records, Axis axis,
                const std::function<std::optional<double>(const RecordedPass&)>& x) {
    Points points;
    for (const RecordedPass& r : records) {
        const std::optional<double> at = x(r);
        if (!at || !r.peer_median_ms) continue;
        points[line_name(r, axis)][*at] = *r.peer_median_ms / r.median_ms;
    }
    return points;
}

// The peers' names, for the y axis.
std::string peer_names(const Records& records) {
    std::set<std::string> names;
    for (const RecordedPass& r : records) {
        if (r.peer) names.insert(*r.peer);
    }
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : " or ") + name;
    return text;
}

io::LineChart speedup_chart(const Records& records, const char* title, const char* x_label,
                            const Points& points) {
    return {title,
            x_label,
            fmt::format("time of {} over this layer's", peer_names(records)),
            series_of(points),
            {{"equal", 1.0}}};
}

io::LineChart tokens_chart(const Records& records) {
    const Points points =
        speedups(records, Axis::Tokens, [](const RecordedPass& r) -> std::optional<double> {
            if (r.tokens_per_rank <= 0) return std::nullopt;
            return std::log2(static_cast<double>(r.tokens_per_rank));
        });
    return speedup_chart(records, "Speed-up over the fastest peer against tokens",
                         "log2 of tokens a rank", points);
}

io::LineChart skew_chart(const Records& records) {
    const Points points =
        speedups(records, Axis::Skew, [](const RecordedPass& r) { return skew_of(r.routing); });
    return speedup_chart(records, "Speed-up over the fastest peer against skew",
                         "Zipf exponent of the routing", points);
}

io::LineChart memory_chart(const Records& records) {
    Points points;
    for (const RecordedPass& r : records) {
        const std::optional<double> skew = skew_of(r.routing);
        if (!skew) continue;
        const std::string name =
            fmt::format("{}{}, T = {}", r.shape, ranks_text(r), r.tokens_per_rank);
        const auto add = [&](const char* what, const std::optional<int64_t>& bytes) {
            if (!bytes) return;
            double& gib = points[fmt::format("{}: {}", name, what)][*skew];
            gib = std::max(gib, static_cast<double>(*bytes) / kGib);  // of the passes
        };
        add("workspace", r.workspace_bytes);
        add("context", r.context_bytes);
        add("peak", r.peak_bytes);
    }
    return {"Memory against skew", "Zipf exponent of the routing", "GiB", series_of(points), {}};
}

}  // namespace

io::LineChart bench_chart(std::string_view kind, const Records& records) {
    io::LineChart chart;
    if (kind == "minibatch") {
        chart = minibatch_chart(records);
    } else if (kind == "speedup-tokens") {
        chart = tokens_chart(records);
    } else if (kind == "speedup-skew") {
        chart = skew_chart(records);
    } else if (kind == "memory-skew") {
        chart = memory_chart(records);
    } else {
        throw std::invalid_argument(
            fmt::format("expected minibatch, speedup-tokens, speedup-skew or memory-skew, found "
                        "\"{}\"",
                        kind));
    }
    if (chart.series.empty()) {
        throw std::invalid_argument(fmt::format(
            "no record of the {} holds what the picture {} shows", records.size(), kind));
    }
    chart.title += ": " + devices(records);
    return chart;
}

}  // namespace mok::cli
