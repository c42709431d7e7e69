#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

#include "comm/group_state.h"
#include "layer/check.h"
#include "layer/state.h"

namespace mok {
namespace {

int64_t id_at(const ConstTensor& ids, int64_t token, int64_t choice) {
    const int64_t at = token * ids.stride[0] + choice * ids.stride[1];
    return ids.dtype == DType::I32 ? static_cast<const int32_t*>(ids.data)[at]
                                   : static_cast<const int64_t*>(ids.data)[at];
}

// Numbers as they are published. What int32 cannot hold is out of range for any number of tokens or
// experts, and so is what it becomes here.
int32_t narrow(int64_t number) {
    constexpr int64_t kLow = std::numeric_limits<int32_t>::min();
    constexpr int64_t kHigh = std::numeric_limits<int32_t>::max();
    return static_cast<int32_t>(std::clamp(number, kLow, kHigh));
}

// Every rank has found the same bad id. Its home tells the others the number that the caller gave.
[[noreturn]] void refuse_id(Workspace::Impl& w, const ConstTensor& own_ids,
                            const plan::BadId& bad) {
    const int rank = w.problem.rank;
    int64_t id = rank == bad.home ? id_at(own_ids, bad.token, bad.choice) : 0;
    const std::vector<comm::Bytes> of_ranks = w.group.state().exchange_bytes(
        rank, std::as_bytes(std::span(&id, 1)), "exchange of a bad id");
    std::memcpy(&id, of_ranks[bad.home].data(), sizeof(id));
    throw ShapeError("topk_ids of rank " + std::to_string(bad.home) + ", token " +
                     std::to_string(bad.token) + ", choice " + std::to_string(bad.choice) +
                     ": expected -1 or an expert below " + std::to_string(w.problem.num_experts) +
                     ", found " + std::to_string(id));
}

}  // namespace

Schedule::Schedule(Workspace& workspace, ConstTensor topk_ids) : impl_(std::make_unique<Impl>()) {
    Workspace::Impl& w = workspace.impl();
    const plan::Problem& p = w.problem;
    layer::check_ids(w, topk_ids);
    Impl& s = *impl_;
    s.workspace = w.identity;
    s.num_tokens = topk_ids.shape[0];

    // Publish this rank's ids. Two buffers take turns: when a rank writes one again, every rank has
    // come to the barrier of the call between, and so has read it.
    const int turn = static_cast<int>(w.num_schedules++ % 2);
    *w.window->at<int32_t>(w.window_map.num_tokens[turn]) = narrow(s.num_tokens);
    if (s.num_tokens <= p.max_tokens) {
        s.ids.resize(s.num_tokens * p.top_k);
        for (int64_t token = 0; token < s.num_tokens; ++token) {
            for (int64_t choice = 0; choice < p.top_k; ++choice) {
                s.ids[token * p.top_k + choice] = narrow(id_at(topk_ids, token, choice));
            }
        }
        std::copy(s.ids.begin(), s.ids.end(), w.window->at<int32_t>(w.window_map.ids[turn]));
    }
    w.group.state().barrier(p.rank, "barrier after the ids");

    std::vector<const int32_t*> ids;
    std::vector<int32_t> num_tokens;
    for (int r = 0; r < p.num_ranks; ++r) {
        const std::byte* base = w.window_bases[r];
        ids.push_back(reinterpret_cast<const int32_t*>(base + w.window_map.ids[turn]));
        num_tokens.push_back(
            *reinterpret_cast<const int32_t*>(base + w.window_map.num_tokens[turn]));
        if (num_tokens.back() > p.max_tokens) {
            throw ShapeError("topk_ids of rank " + std::to_string(r) + ": expected at most " +
                             std::to_string(p.max_tokens) +
                             " tokens (the workspace's maximum), "
                             "found " +
                             std::to_string(num_tokens.back()));
        }
    }
    s.block.resize(plan::route_table_ints(p));
    s.table = plan::route_table_at(p, s.block.data());
    const plan::BadId bad = plan::build_route_table(p, ids.data(), num_tokens.data(), s.table);
    if (bad.found) refuse_id(w, topk_ids, bad);
    for (int32_t e = 0; e < plan::num_local_experts(p); ++e) {
        s.tokens_per_expert.push_back(plan::segment_rows(p, s.table, e));
    }
}

Schedule::~Schedule() = default;
Schedule::Schedule(Schedule&&) noexcept = default;
Schedule& Schedule::operator=(Schedule&&) noexcept = default;

std::span<const int32_t> Schedule::tokens_per_expert() const {
    return impl_->tokens_per_expert;
}

}  // namespace mok
