#include "cli/io/chart_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace mok::io {

namespace {

// Pixels.
constexpr double kWidth = 860;
constexpr double kHeight = 460;
constexpr double kTitleBaseline = 30;
constexpr double kLegendTop = 44;
constexpr double kLegendRow = 18;
constexpr double kBottomMargin = 56;
constexpr double kCharacter = 7;  // about the mean width of a character at 12 pixels
constexpr double kLabelGap = 15;  // between the baselines of two labels

// The colours of Okabe and Ito (2008), told apart with all common colour vision; their lighter
// half on dark ground. No CSS variables: not all viewers know them.
constexpr std::string_view kStyle = R"(<style>
text { font-family: system-ui, 'DejaVu Sans', sans-serif; font-size: 12px; fill: #24292f; }
.title { font-size: 16px; font-weight: 600; }
.ground { fill: #ffffff; }
.grid { stroke: #d8dee4; stroke-width: 1; }
.axis { stroke: #57606a; stroke-width: 1; }
.reference { stroke: #24292f; stroke-width: 1.2; stroke-dasharray: 7 4; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.s0 { stroke: #0072b2; } .s1 { stroke: #d55e00; } .s2 { stroke: #009e73; }
.s3 { stroke: #cc79a7; } .s4 { stroke: #9a6700; } .s5 { stroke: #3d3d8f; }
.bar { fill: #5aa9dd; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.ground { fill: #0d1117; }
.grid { stroke: #30363d; }
.axis { stroke: #8b949e; }
.reference { stroke: #e6edf3; }
.s0 { stroke: #56b4e9; } .s1 { stroke: #ff9248; } .s2 { stroke: #2fd3a5; }
.s3 { stroke: #e9a4c8; } .s4 { stroke: #f0e442; } .s5 { stroke: #a5a5ff; }
.bar { fill: #3a86b8; }
}
</style>
)";

std::string line(std::string_view style, double x1, double y1, double x2, double y2) {
    return fmt::format(
        "<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", style, x1,
        y1, x2, y2);
}

std::string label(double x, double y, std::string_view anchor, std::string_view text) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y,
                       anchor, xml_text(text));
}

std::string number(double value, const Ticks& ticks) {
    // A tick that rounding left a little below zero is zero.
    if (std::abs(value) < ticks.step / 2) value = 0;
    return fmt::format("{:.{}f}", value, ticks.num_decimals);
}

std::size_t longest(const std::vector<std::string>& texts) {
    std::size_t length = 0;
    for (const std::string& text : texts) length = std::max(length, text.size());
    return length;
}

std::vector<std::string> tick_labels(const Ticks& ticks) {
    std::vector<std::string> labels;
    for (const double value : ticks.values) labels.push_back(number(value, ticks));
    return labels;
}

}  // namespace

Ticks round_ticks(double low, double high, int num_steps) {
    if (!std::isfinite(low) || !std::isfinite(high)) {
        low = 0;
        high = 1;
    }
    if (!(low < high)) {
        const double half = std::max(std::abs(low) * 0.05, 0.5);
        low -= half;
        high = low + 2 * half;
    }
    const double raw = (high - low) / num_steps;
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    Ticks ticks;
    ticks.step = 10 * power;
    for (const double factor : {5.0, 2.0, 1.0}) {
        if (factor * power >= raw * (1 - 1e-9)) ticks.step = factor * power;
    }
    ticks.num_decimals = std::max(0, -static_cast<int>(std::floor(std::log10(ticks.step) + 1e-9)));
    const auto first = static_cast<long long>(std::floor(low / ticks.step + 1e-9));
    const auto last = static_cast<long long>(std::ceil(high / ticks.step - 1e-9));
    for (long long i = first; i <= last; ++i) {
        ticks.values.push_back(static_cast<double>(i) * ticks.step);
    }
    return ticks;
}

std::string xml_text(std::string_view text) {
    std::string out;
    for (const char character : text) {
        switch (character) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            default:
                out += static_cast<unsigned char>(character) < 0x20 ? '?' : character;
        }
    }
    return out;
}

ChartFrame::ChartFrame(const FrameText& text, const FrameRange& range,
                       const std::vector<ReferenceLine>& references, int num_legend_rows)
    : text_(text),
      range_(range),
      references_(references),
      x_ticks_(round_ticks(range.x_low, range.x_high, range.num_x_steps)),
      y_ticks_(round_ticks(range.y_low, range.y_high, 6)) {
    if (!(range_.x_low < range_.x_high)) {
        range_.x_low = x_ticks_.values.front();
        range_.x_high = x_ticks_.values.back();
    }
    range_.y_low = y_ticks_.values.front();
    range_.y_high = y_ticks_.values.back();
    std::size_t reference_length = 0;
    for (const ReferenceLine& reference : references) {
        reference_length = std::max(reference_length, reference.label.size());
    }
    const double right_margin =
        std::clamp(kCharacter * static_cast<double>(reference_length) + 16, 28.0, kWidth / 3);
    left_ = 38 + kCharacter * static_cast<double>(longest(tick_labels(y_ticks_)));
    right_ = kWidth - right_margin;
    top_ = kLegendTop + kLegendRow * num_legend_rows + 8;
    bottom_ = kHeight - kBottomMargin;
}

double ChartFrame::x_pixel(double x) const {
    return left_ + (right_ - left_) * (x - range_.x_low) / (range_.x_high - range_.x_low);
}

double ChartFrame::y_pixel(double y) const {
    return bottom_ - (bottom_ - top_) * (y - range_.y_low) / (range_.y_high - range_.y_low);
}

double ChartFrame::legend_top() const {
    return kLegendTop;
}

std::string ChartFrame::axes() const {
    std::string out;
    for (const double value : y_ticks_.values) {
        const double y = y_pixel(value);
        out += line("grid", left_, y, right_, y);
        out += label(left_ - 8, y + 4, "end", number(value, y_ticks_));
    }
    for (const double value : x_ticks_.values) {
        const double slack = x_ticks_.step * 1e-6;
        if (value < range_.x_low - slack || value > range_.x_high + slack) continue;
        const double x = x_pixel(value);
        out += line("axis", x, bottom_, x, bottom_ + 5);
        out += label(x, bottom_ + 19, "middle", number(value, x_ticks_));
    }
    out += line("axis", left_, bottom_, right_, bottom_);
    out += label((left_ + right_) / 2, bottom_ + 42, "middle", text_.x_label);
    const double middle = (top_ + bottom_) / 2;
    out += fmt::format(
        "<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
        middle, xml_text(text_.y_label));
    return out;
}

// The labels stand right of the plot, each at its line or, where lines are close, below the one
// before it.
std::string ChartFrame::reference_lines() const {
    std::vector<ReferenceLine> sorted = references_;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const ReferenceLine& a, const ReferenceLine& b) { return a.y > b.y; });
    std::string out;
    double next_baseline = 0;
    for (const ReferenceLine& reference : sorted) {
        const double y = y_pixel(reference.y);
        const double baseline = std::max(y + 4, next_baseline);
        next_baseline = baseline + kLabelGap;
        out += line("reference", left_, y, right_, y);
        out += label(right_ + 8, baseline, "start", reference.label);
    }
    return out;
}

std::string ChartFrame::wrap(std::string_view data) const {
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
               "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n",
               kWidth, kHeight, xml_text(text_.title)) +
           std::string(kStyle) +
           fmt::format("<rect class=\"ground\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", kWidth,
                       kHeight) +
           fmt::format("<text class=\"title\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left_,
                       kTitleBaseline, xml_text(text_.title)) +
           axes() + std::string(data) + reference_lines() + "</svg>\n";
}

}  // namespace mok::io
