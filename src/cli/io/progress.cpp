#include "cli/io/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace mok::io {

namespace {

constexpr double kTerminalInterval_s = 0.1;
constexpr double kPlainInterval_s = 5;
constexpr int kBarCells = 20;

double steady_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// The longest beginning of UTF-8 `text` of at most num_columns characters.
std::string_view first_columns(std::string_view text, int num_columns) {
    std::size_t end = 0;
    for (int column = 0; end < text.size(); ++column) {
        if (column == num_columns) break;
        ++end;
        while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    }
    return text.substr(0, end);
}

}  // namespace

ProgressOutput stderr_output() {
    ProgressOutput output;
    output.write = [](std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stderr);
        std::fflush(stderr);
    };
    output.now_s = steady_seconds;
    const char* terminal = std::getenv("TERM");
    const bool is_dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
    output.is_terminal = isatty(STDERR_FILENO) == 1 && !is_dumb;
    winsize size{};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        output.num_columns = size.ws_col;
    }
    return output;
}

std::string clock_text(double seconds) {
    const auto whole = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
    if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

Progress::Progress(std::string label, std::int64_t total, std::int64_t first, ProgressOutput output)
    : label_(std::move(label)),
      total_(total),
      first_(first),
      output_(std::move(output)),
      start_s_(output_.now_s()) {}

Progress::~Progress() {
    if (is_line_open_) output_.write("\n");
}

std::string Progress::line(std::int64_t done, std::string_view fields, double now_s) const {
    const double share =
        total_ > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0)
                   : 1.0;
    std::string text = label_;
    if (output_.is_terminal) {
        const int num_full = static_cast<int>(share * kBarCells);
        text += fmt::format(" [{:#<{}}{:.<{}}]", "", num_full, "", kBarCells - num_full);
    }
    text += fmt::format(" {:3} %", static_cast<int>(share * 100));
    if (!fields.empty()) text += fmt::format("  {}", fields);
    const double elapsed_s = now_s - start_s_;
    if (done >= total_) {
        text += fmt::format("  {} taken", clock_text(elapsed_s));
    } else if (done > first_) {
        const double per_step_s = elapsed_s / static_cast<double>(done - first_);
        text +=
            fmt::format("  {} left", clock_text(per_step_s * static_cast<double>(total_ - done)));
    }
    return text;
}

void Progress::update(std::int64_t done, std::string_view fields) {
    const double now_s = output_.now_s();
    const double interval_s = output_.is_terminal ? kTerminalInterval_s : kPlainInterval_s;
    if (has_shown_ && done < total_ && now_s - shown_s_ < interval_s) return;
    has_shown_ = true;
    shown_s_ = now_s;
    const std::string text = line(done, fields, now_s);
    if (!output_.is_terminal) {
        output_.write(text + "\n");
        return;
    }
    // Back to the line's start, erase it (ECMA-48 EL), and stay clear of the last column, where
    // some terminals wrap.
    output_.write("\r\x1b[K" + std::string(first_columns(text, output_.num_columns - 1)));
    is_line_open_ = done < total_;
    if (!is_line_open_) output_.write("\n");
}

}  // namespace mok::io
