#include "cli/plan/timeline_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "cli/io/chart_frame.h"

namespace mok::cli {
namespace {

// Pixels.
constexpr double kWidth = 1400;
constexpr double kLeft = 24, kRight = 24;
constexpr double kTop = 96;             // of the compute lanes
constexpr double kComputeHeight = 400;  // about, so that a lane is whole pixels
constexpr double kMaxLane = 15;
constexpr double kPanelGap = 44;
constexpr double kAxisHeight = 56;
constexpr double kCharacter = 6.8;    // about the mean width of a character at 12 pixels
constexpr double kLegendLeft = 420;   // beside a panel's title
constexpr double kUprightLabel = 16;  // the least width of a phase with a name
constexpr int kNumColours = 6;

// The colours of Okabe and Ito (2008), told apart with all common colour vision.
constexpr std::string_view kStyle = R"(<style>
text { font-family: system-ui, 'DejaVu Sans', sans-serif; font-size: 12px; fill: #24292f; }
.title { font-size: 18px; font-weight: 600; }
.panel { font-size: 13px; font-weight: 600; }
.phase { text-anchor: middle; font-weight: 600; paint-order: stroke; stroke: #ffffff;
         stroke-width: 3px; stroke-linejoin: round; }
.ground { fill: #ffffff; }
.lanes { fill: #f3f5f7; }
.grid { stroke: #aab2bb; stroke-width: 0.6; stroke-dasharray: 2 4; }
.axis { stroke: #57606a; stroke-width: 1; }
.m0 { fill: #0072b2; } .m1 { fill: #d55e00; } .m2 { fill: #009e73; }
.m3 { fill: #cc79a7; } .m4 { fill: #b58900; } .m5 { fill: #5757b8; }
.rest { fill: #6e7781; }
.m0, .m1, .m2, .m3, .m4, .m5, .rest { shape-rendering: crispEdges; }
.p1 { opacity: 0.58; } .p2 { opacity: 0.32; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.phase { stroke: #0d1117; }
.ground { fill: #0d1117; }
.lanes { fill: #161b22; }
.grid { stroke: #57606a; }
.axis { stroke: #8b949e; }
.m0 { fill: #56b4e9; } .m1 { fill: #ff9248; } .m2 { fill: #2fd3a5; }
.m3 { fill: #e9a4c8; } .m4 { fill: #e3c341; } .m5 { fill: #a5a5ff; }
.rest { fill: #8b949e; }
}
</style>
)";

// How light a kind is drawn: its place among the kinds that a role has in one pass.
int shade_of(plan::TaskKind kind, bool has_d_y) {
    switch (kind) {
        case plan::TaskKind::Down:
        case plan::TaskKind::CombineY:
        case plan::TaskKind::GateUpDgrad:
            return 1;
        case plan::TaskKind::DispatchX:
            return has_d_y ? 1 : 0;
        case plan::TaskKind::Replay:
        case plan::TaskKind::CombineDX:
            return 2;
        default:
            return 0;
    }
}

std::string text_at(double x, double y, std::string_view style, std::string_view anchor,
                    std::string_view text) {
    return fmt::format(
        "<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", style, x, y,
        anchor, io::xml_text(text));
}

// The lanes of one role.
struct Panel {
    plan::Role role;
    int num_lanes;
    double top, height;
};

class Picture {
  public:
    Picture(const Timeline& timeline, const TimelinePicture& text)
        : timeline_(timeline), text_(text) {
        compute_ = {plan::Role::Compute, text.num_sms, kTop, lanes_height(text.num_sms)};
        comm_ = {plan::Role::Comm, text.comm_workers, kTop + compute_.height + kPanelGap,
                 lanes_height(text.comm_workers)};
        for (const TaskSpan& span : spans(comm_)) {
            has_d_y_ = has_d_y_ || span.task.kind == plan::TaskKind::DispatchDY;
        }
    }

    std::string draw() const {
        const double height = comm_.top + comm_.height + kAxisHeight;
        std::string out = fmt::format(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
            "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n",
            kWidth, height, io::xml_text(text_.title));
        out += kStyle;
        out += fmt::format("<rect class=\"ground\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", kWidth,
                           height);
        out += text_at(kLeft, 30, "title", "start", text_.title);
        out += text_at(kLeft, 50, "", "start", text_.rates);
        for (const Panel& panel : {compute_, comm_}) {
            out += fmt::format(
                "<rect class=\"lanes\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
                "height=\"{:.1f}\"/>\n",
                kLeft, panel.top, kWidth - kLeft - kRight, panel.height);
        }
        out += axis();
        for (const Panel& panel : {compute_, comm_}) {
            out += panel_title(panel) + blocks(panel);
        }
        return out + phase_labels() + "</svg>\n";
    }

  private:
    static double lanes_height(int num_lanes) {
        const double lane = std::floor(kComputeHeight / num_lanes);
        return lane < 1.0 ? kComputeHeight : num_lanes * std::min(lane, kMaxLane);
    }
    double x_of(double seconds) const {
        const double span = timeline_.end_s > 0.0 ? timeline_.end_s : 1.0;
        return kLeft + (kWidth - kLeft - kRight) * seconds / span;
    }
    const std::vector<TaskSpan>& spans(const Panel& panel) const {
        return timeline_.spans[static_cast<int>(panel.role)];
    }

    // What the lanes are, and each kind's name beside a block of its lightness.
    std::string panel_title(const Panel& panel) const {
        const bool compute = panel.role == plan::Role::Compute;
        const double all = timeline_.end_s * panel.num_lanes;
        const double busy = timeline_.busy_s[static_cast<int>(panel.role)];
        const double baseline = panel.top - 9;
        std::string out =
            text_at(kLeft, baseline, "panel", "start",
                    fmt::format("{}: {} {}, busy {:.1f} % of the time",
                                compute ? "compute" : "communication", panel.num_lanes,
                                compute ? "SMs" : "workers", all > 0.0 ? 100.0 * busy / all : 0.0));
        double x = kLeft + kLegendLeft;
        const auto entry = [&](const std::string& style, const std::string& name) {
            out += fmt::format(
                "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"16\" height=\"11\"/>\n",
                style, x, baseline - 10);
            out += text_at(x + 21, baseline, "", "start", name);
            x += 21 + kCharacter * static_cast<double>(name.size()) + 22;
        };
        std::vector<std::string> seen;
        for (const TaskSpan& span : spans(panel)) {
            const std::string name = legend_name(span);
            if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
            seen.push_back(name);
            TaskSpan sample = span;
            sample.minibatch = std::min(span.minibatch, 0);
            entry(style_of(sample), name);
        }
        return out;
    }
    static std::string legend_name(const TaskSpan& span) {
        if (span.shared) return "shared expert";
        return plan::is_wgrad(span.task.kind) ? "weight gradients"
                                              : plan::task_name(span.task.kind);
    }

    std::string axis() const {
        const double bottom = comm_.top + comm_.height;
        const io::Ticks ticks = io::round_ticks(0.0, timeline_.end_s * 1e6, 12);
        std::string out;
        for (const double us : ticks.values) {
            const double x = x_of(us * 1e-6);
            if (x > kWidth - kRight + 0.5) continue;
            out += fmt::format(
                "<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" "
                "y2=\"{2:.1f}\"/>\n",
                x, compute_.top, bottom);
            out += fmt::format(
                "<line class=\"axis\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" "
                "y2=\"{2:.1f}\"/>\n",
                x, bottom, bottom + 5);
            out += text_at(x, bottom + 19, "", "middle",
                           fmt::format("{:.{}f}", us, ticks.num_decimals));
        }
        out += fmt::format(
            "<line class=\"axis\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
            kLeft, bottom, kWidth - kRight, bottom);
        return out + text_at((kLeft + kWidth - kRight) / 2, bottom + 40, "", "middle",
                             fmt::format("microseconds from the start; the pass takes {:.0f}",
                                         timeline_.end_s * 1e6));
    }

    std::string style_of(const TaskSpan& span) const {
        if (span.shared) return "rest";
        if (plan::is_wgrad(span.task.kind)) return fmt::format("rest p{}", 1 + span.task.piece % 2);
        return fmt::format("m{} p{}", span.minibatch % kNumColours,
                           shade_of(span.task.kind, has_d_y_));
    }

    // Tasks of one style that follow each other on a lane without waiting are one block.
    std::string blocks(const Panel& panel) const {
        struct Block {
            std::string style;
            double begin_s = 0.0, end_s = -1.0;
        };
        std::vector<Block> open(panel.num_lanes);
        std::string out;
        const double lane = panel.height / panel.num_lanes;
        const double gap = lane > 6.0 ? 1.0 : 0.0;
        const auto close = [&](int worker) {
            const Block& b = open[worker];
            const double x = x_of(b.begin_s), width = x_of(b.end_s) - x;
            if (width <= 0.0) return;
            out += fmt::format(
                "<rect class=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" "
                "height=\"{:.2f}\"/>\n",
                b.style, x, panel.top + lane * worker, width, lane - gap);
        };
        for (const TaskSpan& span : spans(panel)) {
            Block& b = open[span.worker];
            const std::string style = style_of(span);
            if (style == b.style && span.begin_s <= b.end_s) {
                b.end_s = span.end_s;
                continue;
            }
            close(span.worker);
            b = {style, span.begin_s, span.end_s};
        }
        for (int worker = 0; worker < panel.num_lanes; ++worker) close(worker);
        return out;
    }

    // Every phase of a minibatch is named in the middle of its time, upright where it is narrow.
    std::string phase_labels() const {
        struct Extent {
            double busy_s = 0.0, moment = 0.0;
            int level = 0, number = 0;
        };
        std::map<std::string, Extent> phases;
        for (const TaskSpan& span : spans(compute_)) {
            const bool wgrad = plan::is_wgrad(span.task.kind);
            const int number = wgrad ? span.task.piece : span.minibatch;
            const std::string kind = wgrad ? "wgrad" : plan::task_name(span.task.kind);
            Extent& e = phases[span.shared ? "shared expert" : fmt::format("{} {}", kind, number)];
            const double seconds = span.end_s - span.begin_s;
            e.busy_s += seconds;
            e.moment += seconds * (span.begin_s + span.end_s) / 2;
            e.level = wgrad ? 2 : shade_of(span.task.kind, has_d_y_);
            e.number = std::max(number, 0);
        }
        std::string out;
        for (const auto& [name, e] : phases) {
            const double width = x_of(e.busy_s / compute_.num_lanes) - kLeft;
            if (width < kUprightLabel) continue;
            const bool upright = width < 1.05 * kCharacter * static_cast<double>(name.size());
            const double at = 0.25 + 0.22 * e.level + 0.08 * (e.number % 2);
            out += fmt::format(
                "<text class=\"phase\" transform=\"translate({:.1f} {:.1f}) rotate({})\" "
                "dy=\"0.35em\">{}</text>\n",
                x_of(e.moment / e.busy_s), compute_.top + compute_.height * at, upright ? -90 : 0,
                name);
        }
        return out;
    }

    const Timeline& timeline_;
    const TimelinePicture& text_;
    Panel compute_{}, comm_{};
    bool has_d_y_ = false;  // a backward pass
};

}  // namespace

std::string timeline_svg(const Timeline& timeline, const TimelinePicture& picture) {
    return Picture(timeline, picture).draw();
}

}  // namespace mok::cli
