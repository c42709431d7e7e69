#include "cli/train/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/io/atomic_file.h"
#include "cli/io/chart.h"

namespace mok::train {
namespace {

constexpr int64_t kCurvePoints = 400;

std::string line(const std::string& name, const std::string& train, const std::string& held_out) {
    return fmt::format("{:<38}{:>10}{:>10}\n", name, train, held_out);
}

std::string bits(double value) {
    return fmt::format("{:.3f}", value);
}

std::string expert_lines(const std::vector<int64_t>& tokens) {
    std::string lines;
    constexpr size_t kPerLine = 8;
    for (size_t e = 0; e < tokens.size(); ++e) {
        if (e % kPerLine == 0) {
            lines += fmt::format("  experts {:>3} to {:>3}:", e,
                                 std::min(e + kPerLine, tokens.size()) - 1);
        }
        lines += fmt::format(" {:>7}", tokens[e]);
        if (e % kPerLine == kPerLine - 1 || e + 1 == tokens.size()) lines += "\n";
    }
    return lines;
}

}  // namespace

std::string report_table(const Text& text, const Baselines& baselines, const RunResult& result) {
    const auto& train = result.train_starts;
    const auto& held_out = result.held_out_starts;
    const double gain = result.held_out_zeroed.bits_per_byte - result.held_out.bits_per_byte;
    std::string table = line("bits per byte", "train", "held-out");
    table += line("unigram", bits(baselines.unigram_bits(text, train)),
                  bits(baselines.unigram_bits(text, held_out)));
    table +=
        line(fmt::format("bigram, interpolated (lambda {:.4f})", baselines.bigram.lambda()),
             bits(baselines.bigram_bits(text, train)), bits(baselines.bigram_bits(text, held_out)));
    table += line("mixture of experts", bits(result.train.bits_per_byte),
                  bits(result.held_out.bits_per_byte));
    table += line("  with routed outputs zeroed", "",
                  fmt::format("{} ({:+.3f})", bits(result.held_out_zeroed.bits_per_byte), gain));
    table += "tokens per expert, held-out\n";
    table += expert_lines(result.held_out.tokens_per_expert);
    return table;
}

void write_loss_curve(const std::filesystem::path& path, const Text& text,
                      const Baselines& baselines, const RunState& state, const RunResult& result) {
    const int64_t count = state.steps_done;
    const int64_t stride = std::max<int64_t>(1, (count + kCurvePoints - 1) / kCurvePoints);
    io::Series series{"training batch", {}, {}};
    for (int64_t begin = 0; begin < count; begin += stride) {
        const int64_t end = std::min(count, begin + stride);
        double sum = 0.0;
        for (int64_t i = begin; i < end; ++i) sum += state.losses[i];
        series.x.push_back(0.5 * static_cast<double>(begin + 1 + end));
        series.y.push_back(sum / static_cast<double>(end - begin));
    }
    io::LineChart chart;
    chart.title = "mok train";
    chart.x_label = stride == 1 ? "step" : fmt::format("step (means of {})", stride);
    chart.y_label = "bits per byte";
    chart.series = {series};
    const auto& held_out = result.held_out_starts;
    chart.references = {{"unigram", baselines.unigram_bits(text, held_out)},
                        {"bigram", baselines.bigram_bits(text, held_out)}};
    if (result.held_out.bits_per_byte > 0.0) {
        chart.references.push_back({"held-out", result.held_out.bits_per_byte});
    }
    io::write_text_file(path, io::line_chart_svg(chart));
}

}  // namespace mok::train
