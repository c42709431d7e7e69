#pragma once

#include <string>
#include <vector>

// Charts as self-contained SVG text: no fonts, scripts or files of their own, dark where the viewer
// prefers it. Equal charts give equal text. Write it with write_text_file (atomic_file.h).
namespace mok::io {

// A line through (x[i], y[i]) in that order. A point that is not finite is left out and breaks the
// line.
struct Series {
    std::string name;
    std::vector<double> x;
    std::vector<double> y;
};

// A horizontal line with a label beside the plot.
struct ReferenceLine {
    std::string label;
    double y = 0;
};

struct LineChart {
    std::string title;
    std::string x_label;
    std::string y_label;
    std::vector<Series> series;
    std::vector<ReferenceLine> references;
};

// Bars from zero, numbered from 0, for values that are finite and not negative.
struct BarChart {
    std::string title;
    std::string x_label;
    std::string y_label;
    std::vector<double> values;
    std::vector<ReferenceLine> references;
};

// Throws std::invalid_argument where a series has not as many x as y.
std::string line_chart_svg(const LineChart& chart);

// Throws std::invalid_argument where a value is negative or not finite.
std::string bar_chart_svg(const BarChart& chart);

}  // namespace mok::io
