#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common/global_layer.h"
#include "plan/program.h"

namespace mok::cli {

struct RankTask {
    int rank;
    plan::Task task;
};

// The tasks that an element of a result comes from, in the order in which they ran, and the same as
// words.
struct ElementOrigin {
    std::vector<RankTask> tasks;
    std::string sentence;  // e.g. "GateWgrad of expert 5 (rank 1), macrobatch 0, piece 3, part 7"
};

// Says which task wrote an element of a result, from the plan of the call: its ranks, route tables,
// tiles and pieces.
class ElementWriter {
  public:
    // Of run_global(shape, inputs, options). Makes workspaces and schedules but runs nothing.
    ElementWriter(const LayerShape& shape, const GlobalInputs& inputs,
                  const GlobalOptions& options);

    // `tensor` is a name of `mok run`'s output, `coordinate` lies in it. Throws
    // std::invalid_argument for another name.
    ElementOrigin origin(std::string_view tensor, std::span<const int64_t> coordinate) const;

  private:
    struct Rank {
        Workspace workspace;
        Schedule schedule;
        int64_t first_token;
        const plan::Problem& problem() const;
        const plan::RouteTable& table() const;
    };
    // A token's home rank and its index there; a route's rank, slot and expert.
    struct Route {
        int rank;
        int32_t slot;
        int64_t expert;
    };

    int home_of(int64_t token) const;
    Route find_route(int home, int64_t token, int64_t choice) const;
    void add_route(const Route& route, plan::TaskKind compute, int32_t part, plan::TaskKind combine,
                   ElementOrigin& origin) const;
    ElementOrigin row_origin(bool is_output, int64_t token, int64_t column) const;
    ElementOrigin router_origin(int64_t token, int64_t choice) const;
    ElementOrigin shared_router_origin(int64_t token) const;
    ElementOrigin expert_origin(plan::TaskKind kind, int64_t expert, int32_t part) const;
    ElementOrigin shared_weight_origin(plan::TaskKind kind, int32_t part) const;

    LayerShape shape_;
    std::vector<int32_t> ids_;  // [N, K]
    std::vector<Rank> ranks_;
};

}  // namespace mok::cli
