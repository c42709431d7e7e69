#include "cli/common/element_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "cli/common/rank_threads.h"
#include "layer/state.h"

namespace mok::cli {
namespace {

using plan::TaskKind;

// One of the tensors that hold a gradient of weights: the tensor's element (row, column) is in the
// wgrad's tile; a bias has the row only.
struct WeightTensor {
    std::string_view name;
    TaskKind kind;
    bool is_shared;
    bool is_bias;
};
constexpr WeightTensor kWeightTensors[] = {
    {"grad_gate_proj", TaskKind::GateWgrad, false, false},
    {"grad_up_proj", TaskKind::UpWgrad, false, false},
    {"grad_down_proj", TaskKind::DownWgrad, false, false},
    {"grad_gate_bias", TaskKind::GateWgrad, false, true},
    {"grad_up_bias", TaskKind::UpWgrad, false, true},
    {"grad_down_bias", TaskKind::DownWgrad, false, true},
    {"grad_shared_gate_proj", TaskKind::GateWgrad, true, false},
    {"grad_shared_up_proj", TaskKind::UpWgrad, true, false},
    {"grad_shared_down_proj", TaskKind::DownWgrad, true, false},
};

int32_t wgrad_part(const LayerShape& s, const WeightTensor& t, std::span<const int64_t> at) {
    const int64_t width = t.is_shared ? s.shared_intermediate : s.intermediate;
    const bool down = t.kind == TaskKind::DownWgrad;
    const auto row = static_cast<int32_t>(at[t.is_shared ? 0 : 1]);
    const auto col = static_cast<int32_t>(t.is_bias ? 0 : at[t.is_shared ? 1 : 2]);
    return plan::wgrad_part_at(t.kind, static_cast<int32_t>(down ? s.hidden : width),
                               static_cast<int32_t>(down ? width : s.hidden), {row, col});
}

std::vector<int32_t> narrow_ids(const ConstTensor& ids) {
    std::vector<int32_t> narrow(ids.shape[0] * ids.shape[1]);
    for (size_t i = 0; i < narrow.size(); ++i) {
        narrow[i] = ids.dtype == DType::I32
                        ? static_cast<const int32_t*>(ids.data)[i]
                        : static_cast<int32_t>(static_cast<const int64_t*>(ids.data)[i]);
    }
    return narrow;
}

}  // namespace

const plan::Problem& ElementWriter::Rank::problem() const {
    return workspace.impl().problem;
}
const plan::RouteTable& ElementWriter::Rank::table() const {
    return schedule.impl().table;
}

ElementWriter::ElementWriter(const LayerShape& shape, const GlobalInputs& inputs,
                             const GlobalOptions& options)
    : shape_(shape), ids_(narrow_ids(inputs.topk_ids)) {
    const int64_t num_tokens = inputs.x.shape[0], top_k = shape.top_k;
    const std::vector<int64_t> tokens = split_tokens(num_tokens, options);
    std::vector<int64_t> first(tokens.size() + 1, 0);
    for (size_t r = 0; r < tokens.size(); ++r) first[r + 1] = first[r] + tokens[r];
    std::vector<std::optional<Rank>> made(tokens.size());
    run_ranks(Group::in_process(options.num_ranks, options.group), [&](const Group& group) {
        const int r = group.rank();
        Workspace workspace(group, shape, options.tuning,
                            *std::max_element(tokens.begin(), tokens.end()));
        Schedule schedule(
            workspace, ConstTensor(ids_.data() + first[r] * top_k, DType::I32, {tokens[r], top_k}));
        made[r].emplace(Rank{std::move(workspace), std::move(schedule), first[r]});
    });
    for (std::optional<Rank>& rank : made) ranks_.push_back(std::move(*rank));
}

int ElementWriter::home_of(int64_t token) const {
    int home = 0;
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
        const int64_t count = ranks_[r].schedule.impl().num_tokens;
        if (token >= ranks_[r].first_token && token < ranks_[r].first_token + count) home = r;
    }
    return home;
}

ElementWriter::Route ElementWriter::find_route(int home, int64_t token, int64_t choice) const {
    const int64_t expert = ids_[token * shape_.top_k + choice];
    const int rank = plan::expert_rank(ranks_[0].problem(), static_cast<int32_t>(expert));
    const plan::RouteTable& table = ranks_[rank].table();
    const int64_t route = (token - ranks_[home].first_token) * shape_.top_k + choice;
    for (int32_t slot = 0; slot < plan::num_slots(table); ++slot) {
        if (table.slot_home[slot] == home && table.slot_route[slot] == route) {
            return {rank, slot, expert};
        }
    }
    throw std::logic_error("a route without a slot");
}

// The compute task that made the route's row and the one that pushed it home.
void ElementWriter::add_route(const Route& route, TaskKind compute, int32_t part, TaskKind combine,
                              ElementOrigin& origin) const {
    const int32_t tile = route.slot / plan::kTileRows;
    const int32_t group = route.slot % plan::kTileRows / plan::kCommRows;
    origin.tasks.push_back({route.rank, {compute, tile, part, -1, -1}});
    origin.tasks.push_back({route.rank, {combine, tile, group, -1, -1}});
    origin.sentence +=
        fmt::format("{} of tile {}, part {} and {} of part {} on rank {} (expert {}, slot {})",
                    plan::task_name(compute), tile, part, plan::task_name(combine), group,
                    route.rank, route.expert, route.slot);
}

ElementOrigin ElementWriter::row_origin(bool is_output, int64_t token, int64_t column) const {
    const int home = home_of(token);
    const int64_t local = token - ranks_[home].first_token;
    const auto part = static_cast<int32_t>(column / plan::kOutCols);
    const TaskKind compute = is_output ? TaskKind::Down : TaskKind::GateUpDgrad;
    const TaskKind combine = is_output ? TaskKind::CombineY : TaskKind::CombineDX;
    ElementOrigin origin;
    origin.sentence = fmt::format("reduce of token {} on rank {}", local, home);
    if (shape_.shared_intermediate > 0) {
        const auto tile =
            static_cast<int32_t>(plan::max_tiles(ranks_[home].problem()) + local / plan::kTileRows);
        origin.tasks.push_back({home, {compute, tile, part, -1, -1}});
        origin.sentence += fmt::format(", shared expert: {} of tile {}, part {}",
                                       plan::task_name(compute), tile, part);
    }
    for (int64_t choice = 0; choice < shape_.top_k; ++choice) {
        origin.sentence += fmt::format(", choice {}: ", choice);
        if (ids_[token * shape_.top_k + choice] < 0) {
            origin.sentence += "none (masked)";
        } else {
            add_route(find_route(home, token, choice), compute, part, combine, origin);
        }
    }
    return origin;
}

ElementOrigin ElementWriter::router_origin(int64_t token, int64_t choice) const {
    const int home = home_of(token);
    ElementOrigin origin;
    if (ids_[token * shape_.top_k + choice] < 0) {
        origin.sentence = fmt::format("reduce of token {} on rank {}, a masked choice",
                                      token - ranks_[home].first_token, home);
        return origin;
    }
    const Route route = find_route(home, token, choice);
    const int32_t tile = route.slot / plan::kTileRows;
    const int32_t parts = plan::down_dgrad_parts(ranks_[route.rank].problem(), false);
    for (int32_t part = 0; part + 1 < parts; ++part) {
        origin.tasks.push_back({route.rank, {TaskKind::DownDgrad, tile, part, -1, -1}});
    }
    if (parts > 1) origin.sentence = fmt::format("DownDgrad of parts 0 to {}, ", parts - 2);
    add_route(route, TaskKind::DownDgrad, parts - 1, TaskKind::CombineDX, origin);
    return origin;
}

ElementOrigin ElementWriter::shared_router_origin(int64_t token) const {
    const int home = home_of(token);
    const plan::Problem& p = ranks_[home].problem();
    const int64_t local = token - ranks_[home].first_token;
    const auto tile = static_cast<int32_t>(plan::max_tiles(p) + local / plan::kTileRows);
    ElementOrigin origin;
    for (int32_t part = 0; part < plan::down_dgrad_parts(p, true); ++part) {
        origin.tasks.push_back({home, {TaskKind::DownDgrad, tile, part, -1, -1}});
    }
    origin.sentence = fmt::format(
        "reduce of token {} on rank {}, shared expert: DownDgrad of tile {}, parts 0 to {}", local,
        home, tile, plan::down_dgrad_parts(p, true) - 1);
    return origin;
}

ElementOrigin ElementWriter::expert_origin(TaskKind kind, int64_t expert, int32_t part) const {
    const int rank = plan::expert_rank(ranks_[0].problem(), static_cast<int32_t>(expert));
    const plan::Problem& p = ranks_[rank].problem();
    const plan::RouteTable& table = ranks_[rank].table();
    const int64_t local = expert - plan::first_expert(p, rank);
    ElementOrigin origin;
    for (int32_t macro = 0; macro < plan::num_macrobatches(p, table); ++macro) {
        for (int32_t piece = table.macro_piece_begin[macro];
             piece < table.macro_piece_begin[macro + 1]; ++piece) {
            if (plan::piece_at(p, table, macro, piece).expert != local) continue;
            origin.tasks.push_back({rank, {kind, -1, part, macro, piece}});
        }
    }
    const plan::Task& last = origin.tasks.back().task;
    origin.sentence = fmt::format(
        "{} of expert {} on rank {} (local expert {}), macrobatch {}, piece {}, part {}",
        plan::task_name(kind), expert, rank, local, last.macro, last.piece, part);
    if (origin.tasks.size() > 1) {
        origin.sentence += fmt::format(", after {} earlier pieces", origin.tasks.size() - 1);
    }
    return origin;
}

ElementOrigin ElementWriter::shared_weight_origin(TaskKind kind, int32_t part) const {
    ElementOrigin origin;
    std::vector<int> chain;
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
        origin.tasks.push_back({r, {kind, -1, part, -1, -1}});
        chain.push_back(r);
    }
    origin.sentence = fmt::format("{} of the shared expert, part {}, of ranks {} in this order",
                                  plan::task_name(kind), part, fmt::join(chain, ", "));
    return origin;
}

ElementOrigin ElementWriter::origin(std::string_view tensor,
                                    std::span<const int64_t> coordinate) const {
    if (tensor == "output" || tensor == "grad_hidden_states") {
        return row_origin(tensor == "output", coordinate[0], coordinate[1]);
    }
    if (tensor == "grad_topk_weights") return router_origin(coordinate[0], coordinate[1]);
    if (tensor == "grad_shared_weights") return shared_router_origin(coordinate[0]);
    for (const WeightTensor& t : kWeightTensors) {
        if (t.name != tensor) continue;
        const int32_t part = wgrad_part(shape_, t, coordinate);
        return t.is_shared ? shared_weight_origin(t.kind, part)
                           : expert_origin(t.kind, coordinate[0], part);
    }
    throw std::invalid_argument(fmt::format("expected a tensor of a result, found {}", tensor));
}

}  // namespace mok::cli
