#include "cli/bench/timed_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "plan/rows.h"
#include "plan/task.h"

namespace mok::cli {
namespace {

constexpr int64_t kElementBytes = 2;  // BF16

// Rows of [begin, end) of other ranks; leads: only those that are pulled.
int64_t remote_rows(const plan::Pass& pass, int32_t begin, int32_t end, bool leads) {
    int64_t rows = 0;
    for (int32_t slot = begin; slot < end; ++slot) {
        const int32_t home = pass.table.slot_home[slot];
        if (home < 0 || home == pass.problem.rank) continue;
        if (leads && pass.table.slot_lead[slot] != slot) continue;
        ++rows;
    }
    return rows;
}

struct Span {
    int rank, sm, track;
    uint64_t begin, end;
    const TimedTask* task;
};

std::string span_text(const Span& s) {
    const plan::Task& t = s.task->task;
    return fmt::format("{} tile {} part {} ({} to {} ns)", plan::task_name(t.kind), t.tile, t.part,
                       s.begin, s.end);
}

}  // namespace

int expert_of(const plan::Pass& pass, const plan::Task& task) {
    if (plan::is_wgrad(task.kind)) {
        return task.piece < 0
                   ? -1
                   : plan::piece_at(pass.problem, pass.table, task.macro, task.piece).expert;
    }
    return plan::is_shared_tile(pass.problem, task.tile) ? -1 : pass.table.tile_expert[task.tile];
}

int64_t remote_bytes_of(const plan::Pass& pass, const plan::Task& task) {
    using plan::TaskKind;
    const plan::Problem& p = pass.problem;
    if (plan::is_wgrad(task.kind) || plan::is_shared_tile(p, task.tile)) return 0;
    const int32_t tile = task.tile * plan::kTileRows;
    const int32_t group = tile + task.part * plan::kCommRows;
    const int64_t row_bytes = int64_t{p.hidden} * kElementBytes;
    switch (task.kind) {
        case TaskKind::DispatchX:
        case TaskKind::DispatchDY:
            return remote_rows(pass, group, group + plan::kCommRows, true) * row_bytes;
        case TaskKind::Down:
        case TaskKind::GateUpDgrad: {
            const int32_t first = task.part * plan::kOutCols;
            const int64_t cols = plan::min_of(plan::kOutCols, p.hidden - first);
            return remote_rows(pass, tile, tile + plan::kTileRows, false) * cols * kElementBytes;
        }
        default:
            return 0;
    }
}

std::optional<std::string> first_overlap(const std::vector<TimedTask>& tasks) {
    std::vector<Span> spans;
    for (const TimedTask& t : tasks) {
        const int role = static_cast<int>(plan::role_of(t.task.kind));
        spans.push_back({t.rank, t.sm, role, t.begin_ns, t.products_end_ns(), &t});
        if (t.has_epilogue()) {
            spans.push_back({t.rank, t.sm, plan::kNumRoles, t.multiplied_ns, t.end_ns, &t});
        }
    }
    const auto key = [](const Span& s) {
        return std::tuple(s.rank, s.sm, s.track, s.begin, s.end);
    };
    std::sort(spans.begin(), spans.end(),
              [&key](const Span& a, const Span& b) { return key(a) < key(b); });
    for (size_t i = 1; i < spans.size(); ++i) {
        const Span &a = spans[i - 1], &b = spans[i];
        const bool same = a.rank == b.rank && a.sm == b.sm && a.track == b.track;
        if (same && b.begin < a.end) {
            return fmt::format("rank {} SM {}: {} overlaps {}", a.rank, a.sm, span_text(a),
                               span_text(b));
        }
    }
    return std::nullopt;
}

}  // namespace mok::cli
