#include "cli/io/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "cli/io/chart_frame.h"

namespace mok::io {

namespace {

constexpr int kNumColours = 6;
constexpr int kNumXSteps = 8;

// Smallest and largest of what is finite.
struct Extent {
    double low = std::numeric_limits<double>::infinity();
    double high = -std::numeric_limits<double>::infinity();

    void add(double value) {
        if (!std::isfinite(value)) return;
        low = std::min(low, value);
        high = std::max(high, value);
    }
};

bool is_drawn(const Series& series, std::size_t i) {
    return std::isfinite(series.x[i]) && std::isfinite(series.y[i]);
}

FrameRange range_of(const LineChart& chart) {
    Extent x;
    Extent y;
    for (const Series& series : chart.series) {
        for (std::size_t i = 0; i < series.x.size(); ++i) {
            if (!is_drawn(series, i)) continue;
            x.add(series.x[i]);
            y.add(series.y[i]);
        }
    }
    for (const ReferenceLine& reference : chart.references) y.add(reference.y);
    return {x.low, x.high, y.low, y.high, kNumXSteps};
}

// Colour and dashes of a series; lines after the first also differ by their dashes.
std::string series_style(std::size_t series_idx) {
    constexpr const char* kDashes[] = {"none", "9 4", "2 4", "9 4 2 4"};
    return fmt::format("class=\"line s{}\" stroke-dasharray=\"{}\"", series_idx % kNumColours,
                       kDashes[series_idx % std::size(kDashes)]);
}

std::string polylines(const Series& series, std::size_t series_idx, const ChartFrame& frame) {
    std::string out;
    std::string points;
    std::string last_point;
    const auto end_line = [&] {
        if (!points.empty()) {
            out += fmt::format("<polyline {} points=\"{}\"/>\n", series_style(series_idx), points);
        }
        points.clear();
        last_point.clear();
    };
    for (std::size_t i = 0; i < series.x.size(); ++i) {
        if (!is_drawn(series, i)) {
            end_line();
            continue;
        }
        const std::string point =
            fmt::format("{:.1f},{:.1f}", frame.x_pixel(series.x[i]), frame.y_pixel(series.y[i]));
        if (point == last_point) continue;
        points += (points.empty() ? "" : " ") + point;
        last_point = point;
    }
    end_line();
    return out;
}

std::string legend(const std::vector<Series>& series, const ChartFrame& frame) {
    std::string out;
    for (std::size_t i = 0; i < series.size(); ++i) {
        const double y = frame.legend_top() + 18 * static_cast<double>(i);
        out += fmt::format(
            "<line {} x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n"
            "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
            series_style(i), frame.left(), y + 6, frame.left() + 34, y + 6, frame.left() + 42,
            y + 10, xml_text(series[i].name));
    }
    return out;
}

}  // namespace

std::string line_chart_svg(const LineChart& chart) {
    for (const Series& series : chart.series) {
        if (series.x.size() != series.y.size()) {
            throw std::invalid_argument(
                fmt::format("series \"{}\": expected as many y as x ({}), found {}", series.name,
                            series.x.size(), series.y.size()));
        }
    }
    const ChartFrame frame({chart.title, chart.x_label, chart.y_label}, range_of(chart),
                           chart.references, static_cast<int>(chart.series.size()));
    std::string data;
    for (std::size_t i = 0; i < chart.series.size(); ++i) {
        data += polylines(chart.series[i], i, frame);
    }
    return frame.wrap(data + legend(chart.series, frame));
}

std::string bar_chart_svg(const BarChart& chart) {
    Extent y;
    y.add(0);
    for (const double value : chart.values) {
        if (!(value >= 0) || !std::isfinite(value)) {
            throw std::invalid_argument(
                fmt::format("bars: expected finite values of at least 0, found {}", value));
        }
        y.add(value);
    }
    for (const ReferenceLine& reference : chart.references) y.add(reference.y);
    const int num_bars = std::max(static_cast<int>(chart.values.size()), 1);
    // Not more steps than bars, so that ticks stand at whole numbers.
    const int num_x_steps = std::min(kNumXSteps, num_bars);
    const ChartFrame frame({chart.title, chart.x_label, chart.y_label},
                           {-0.5, num_bars - 0.5, y.low, y.high, num_x_steps}, chart.references, 0);
    std::string data;
    for (std::size_t i = 0; i < chart.values.size(); ++i) {
        const double middle = static_cast<double>(i);
        const double left = frame.x_pixel(middle - 0.4);
        const double top = frame.y_pixel(chart.values[i]);
        data += fmt::format(
            "<rect class=\"bar\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
            left, top, frame.x_pixel(middle + 0.4) - left, frame.bottom() - top);
    }
    return frame.wrap(data);
}

}  // namespace mok::io
