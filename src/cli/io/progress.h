#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace mok::io {

// Where progress goes, and how.
struct ProgressOutput {
    std::function<void(std::string_view)> write;
    std::function<double()> now_s;  // a clock that never goes back
    bool is_terminal = false;
    int num_columns = 80;
};

// stderr; a terminal where it is one and TERM is not "dumb".
ProgressOutput stderr_output();

// The progress of `total` steps, of which `first` were done before (a resumed run). On a terminal
// one line is rewritten, at most ten times a second:
//     train [######..............]  31 %  loss 3.12  18.2k tokens/s  0:41 left
// Elsewhere the same without the bar is printed as a line of its own, at most every five seconds.
// The first and the last update are always shown.
class Progress {
  public:
    Progress(std::string label, std::int64_t total, std::int64_t first = 0,
             ProgressOutput output = stderr_output());
    // Ends a line that is still open, so that what follows begins on its own.
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    // `done` of the total are done; `fields` is any text about now, e.g. "loss 3.12".
    void update(std::int64_t done, std::string_view fields);

  private:
    std::string line(std::int64_t done, std::string_view fields, double now_s) const;

    std::string label_;
    std::int64_t total_;
    std::int64_t first_;
    ProgressOutput output_;
    double start_s_;
    double shown_s_ = 0;
    bool has_shown_ = false;
    bool is_line_open_ = false;
};

// Seconds as "0:41" or "1:02:03", rounded to whole ones.
std::string clock_text(double seconds);

}  // namespace mok::io
