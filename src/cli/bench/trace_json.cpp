#include "cli/bench/trace_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace mok::cli {
namespace {

using Json = nlohmann::ordered_json;

int track_id(int sm, Track track) {
    return sm * kNumTracks + track;
}

Json name_event(const char* what, int rank, int track_id, const std::string& name) {
    return {
        {"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", track_id}, {"args", {{"name", name}}}};
}

// Names of the ranks and tracks that there are.
void add_names(const std::vector<TimedTask>& tasks, Json& events) {
    std::set<std::pair<int, int>> sms;
    for (const TimedTask& t : tasks) sms.emplace(t.rank, t.sm);
    int last_rank = -1;
    for (const auto& [rank, sm] : sms) {
        if (rank != last_rank) {
            events.push_back(name_event("process_name", rank, 0, fmt::format("rank {}", rank)));
        }
        last_rank = rank;
        for (const Track track : {kProducts, kEpilogues, kExchange}) {
            const std::string name = fmt::format("SM {} {}", sm, kTrackNames[track]);
            events.push_back(name_event("thread_name", rank, track_id(sm, track), name));
        }
    }
}

}  // namespace

Json trace_json(const std::vector<TimedTask>& tasks) {
    uint64_t zero = std::numeric_limits<uint64_t>::max();
    for (const TimedTask& t : tasks) zero = std::min(zero, t.begin_ns);
    Json events = Json::array();
    add_names(tasks, events);
    const auto add = [&](const TimedTask& t, Track track, uint64_t begin, uint64_t end) {
        const std::string kind = plan::task_name(t.task.kind);
        events.push_back({{"name", track == kEpilogues ? kind + " epilogue" : kind},
                          {"cat", kTrackNames[track]},
                          {"ph", "X"},
                          {"ts", static_cast<double>(begin - zero) / 1e3},
                          {"dur", static_cast<double>(end - begin) / 1e3},
                          {"pid", t.rank},
                          {"tid", track_id(t.sm, track)},
                          {"args",
                           {{"tile", t.task.tile},
                            {"part", t.task.part},
                            {"expert", t.expert},
                            {"remote_bytes", t.remote_bytes}}}});
    };
    for (const TimedTask& t : tasks) {
        const bool computes = plan::role_of(t.task.kind) == plan::Role::Compute;
        add(t, computes ? kProducts : kExchange, t.begin_ns, t.products_end_ns());
        if (t.has_epilogue()) add(t, kEpilogues, t.multiplied_ns, t.end_ns);
    }
    return {{"displayTimeUnit", "ns"}, {"traceEvents", std::move(events)}};
}

}  // namespace mok::cli
