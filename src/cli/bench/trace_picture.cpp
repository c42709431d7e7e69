#include "cli/bench/trace_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include "cli/bench/trace_json.h"
#include "cli/io/file_error.h"
#include "cli/io/json_file.h"
#include "cli/plan/timeline_svg.h"

namespace mok::cli {
namespace {

using Json = nlohmann::json;

constexpr int kMaxLanes = 44;  // of a role: more would be thinner than they can be told apart

struct Event {
    plan::TaskKind kind;
    int sm;
    int expert;
    double begin_us, end_us;
};

std::optional<plan::TaskKind> kind_named(const std::string& name) {
    for (int32_t k = 0; k < plan::kNumTaskKinds; ++k) {
        const auto kind = static_cast<plan::TaskKind>(k);
        if (name == plan::task_name(kind)) return kind;
    }
    return std::nullopt;
}

// The event of a rank's task, absent for what is none (names, epilogues, other ranks).
std::optional<Event> task_event(const Json& e, int rank) {
    if (e.at("ph") != "X" || e.at("pid") != rank || e.at("cat") == kTrackNames[kEpilogues]) {
        return std::nullopt;
    }
    const std::optional<plan::TaskKind> kind = kind_named(e.at("name"));
    if (!kind) throw std::invalid_argument("a task of the kind " + e.at("name").dump());
    const double begin = e.at("ts"), length = e.at("dur");
    if (!(begin >= 0.0 && length >= 0.0 && begin + length < 1e12)) {
        throw std::invalid_argument("the times " + e.at("ts").dump() + ", " + e.at("dur").dump());
    }
    const int track = e.at("tid");
    if (track < 0) throw std::invalid_argument("the track " + e.at("tid").dump());
    return Event{*kind, track / kNumTracks, e.at("args").at("expert"), begin, begin + length};
}

std::vector<Event> read_events(const std::filesystem::path& path, int rank) {
    const Json json = io::read_json(path);
    std::vector<Event> events;
    size_t at = 0;
    try {
        for (const Json& e : json.at("traceEvents")) {
            if (const auto event = task_event(e, rank)) events.push_back(*event);
            ++at;
        }
    } catch (const std::invalid_argument& e) {
        throw io::FileError(fmt::format("{}: traceEvents[{}]: expected a task, found {}",
                                        path.string(), at, e.what()));
    } catch (const Json::exception&) {
        throw io::FileError(
            fmt::format("{}: expected a trace of mok bench --trace, found another "
                        "form at traceEvents[{}]",
                        path.string(), at));
    }
    if (events.empty()) {
        throw std::invalid_argument(
            fmt::format("--rank: expected a rank of {}, found {}", path.string(), rank));
    }
    return events;
}

// Multiprocessors with tasks of a role, at most kMaxLanes of them, evenly chosen.
struct Lanes {
    std::vector<int> sms;
    int of = 0;
    std::optional<int> lane_of(int sm) const {
        const auto found = std::lower_bound(sms.begin(), sms.end(), sm);
        if (found == sms.end() || *found != sm) return std::nullopt;
        return static_cast<int>(found - sms.begin());
    }
};
Lanes lanes_of(const std::vector<Event>& events, plan::Role role) {
    std::set<int> all;
    for (const Event& e : events) {
        if (plan::role_of(e.kind) == role) all.insert(e.sm);
    }
    Lanes lanes{{}, static_cast<int>(all.size())};
    const int step = plan::max_of(1, plan::ceil_div(lanes.of, kMaxLanes));
    int i = 0;
    for (const int sm : all) {
        if (i++ % step == 0) lanes.sms.push_back(sm);
    }
    return lanes;
}

}  // namespace

std::string trace_svg(const std::filesystem::path& file, int rank) {
    std::vector<Event> events = read_events(file, rank);
    std::sort(events.begin(), events.end(),
              [](const Event& a, const Event& b) { return a.begin_us < b.begin_us; });
    const Lanes lanes[plan::kNumRoles] = {lanes_of(events, static_cast<plan::Role>(0)),
                                          lanes_of(events, static_cast<plan::Role>(1))};
    Timeline timeline;
    bool backward = false;
    for (const Event& e : events) {
        const int role = static_cast<int>(plan::role_of(e.kind));
        backward = backward || e.kind == plan::TaskKind::GateUpDgrad || plan::is_wgrad(e.kind);
        timeline.end_s = std::max(timeline.end_s, e.end_us * 1e-6);
        const std::optional<int> lane = lanes[role].lane_of(e.sm);
        if (!lane) continue;
        TaskSpan span{};
        span.task.kind = e.kind;
        span.worker = *lane;
        span.shared = e.expert < 0 && !plan::is_wgrad(e.kind);
        span.minibatch = std::max(e.expert, 0);
        span.begin_s = e.begin_us * 1e-6;
        span.end_s = e.end_us * 1e-6;
        timeline.busy_s[role] += span.end_s - span.begin_s;
        timeline.spans[role].push_back(span);
    }
    const Lanes& compute = lanes[static_cast<int>(plan::Role::Compute)];
    const Lanes& comm = lanes[static_cast<int>(plan::Role::Comm)];
    TimelinePicture text;
    text.title = fmt::format("A {} as rank {} ran it", backward ? "backward" : "forward", rank);
    text.rates = fmt::format(
        "recorded by the kernel; colours and numbers are local experts; blank among products: an "
        "epilogue or waiting; {} of {} multiprocessors",
        compute.sms.size(), compute.of);
    text.num_sms = std::max<int>(1, static_cast<int>(compute.sms.size()));
    text.comm_workers = std::max<int>(1, static_cast<int>(comm.sms.size()));
    return timeline_svg(timeline, text);
}

}  // namespace mok::cli
