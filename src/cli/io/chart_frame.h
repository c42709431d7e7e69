#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/io/chart.h"

// What the two charts share: ticks, the map from values to pixels, and everything around the data.
namespace mok::io {

// Round numbers (1, 2 or 5 times a power of ten apart), first <= low and last >= high, in about
// num_steps steps. Where low == high, or one is not finite, the range is widened to hold a step.
struct Ticks {
    double step = 1;
    std::vector<double> values;
    int num_decimals = 0;  // that the labels need
};
Ticks round_ticks(double low, double high, int num_steps);

// `text` with &, <, > and quotes written for XML; characters that XML cannot hold become '?'.
std::string xml_text(std::string_view text);

struct FrameText {
    std::string_view title;
    std::string_view x_label;
    std::string_view y_label;
};

struct FrameRange {
    double x_low = 0;  // the plot's left edge
    double x_high = 1;
    double y_low = 0;  // widened to round ticks
    double y_high = 1;
    int num_x_steps = 8;  // about so many ticks
};

class ChartFrame {
  public:
    // `num_legend_rows` rows of 18 pixels are kept free between title and plot.
    ChartFrame(const FrameText& text, const FrameRange& range,
               const std::vector<ReferenceLine>& references, int num_legend_rows);

    double x_pixel(double x) const;
    double y_pixel(double y) const;
    double left() const { return left_; }
    double right() const { return right_; }
    double bottom() const { return bottom_; }
    double legend_top() const;

    // The whole file around the SVG elements of the data.
    std::string wrap(std::string_view data) const;

  private:
    std::string axes() const;
    std::string reference_lines() const;

    FrameText text_;
    FrameRange range_;
    const std::vector<ReferenceLine>& references_;
    Ticks x_ticks_;
    Ticks y_ticks_;
    double left_ = 0;
    double right_ = 0;
    double top_ = 0;
    double bottom_ = 0;
};

}  // namespace mok::io
