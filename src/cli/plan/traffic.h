#pragma once

#include <cstdint>
#include <vector>

#include "cli/plan/plan_request.h"
#include "plan/traffic.h"

namespace mok::cli {

// Ids of all ranks for one random routing, [R * T, K], and every rank's part of them.
struct GlobalIds {
    std::vector<int32_t> ids;
    std::vector<const int32_t*> by_rank;  // [R], each [T, K]
    std::vector<int32_t> num_tokens;      // [R], all T
};
GlobalIds global_ids(const PlanRequest& request, Routing routing);

// A route table together with its memory, which is used again when the next table is built.
class TableMemory {
  public:
    // Makes room for the table of any rank, so that build() allocates nothing.
    void reserve(const PlanRequest& request);
    plan::RouteTable build(const plan::Problem& p, const GlobalIds& ids);

  private:
    std::vector<int32_t> block_;
};

// Threads of traffic_of, each with a table of its own.
int num_table_threads(const PlanRequest& request);

// What one expert rank's route table holds.
struct RankLoad {
    int64_t rows = 0;   // routes to this rank
    int64_t slots = 0;  // with padding
    int64_t macrobatches = 0;
    int64_t kept_rows = 0;  // slots in the context
};

// Rows that the expert ranks exchange with the home ranks in one pass, [expert rank, home rank].
struct PassRows {
    std::vector<int64_t> pulled_per_group;  // as the passes do it: one copy of a token a group
    std::vector<int64_t> pulled_per_route;  // one copy a choice
    std::vector<int64_t> pushed;
};

// One routing over all ranks.
struct Traffic {
    Routing routing{};
    int num_ranks = 0;
    int64_t row_bytes = 0;         // of a row in BF16: x and d_y of a backward, y or d_x
    int64_t dispatched_bytes = 0;  // of a row of x that a forward pulls
    std::vector<RankLoad> loads;   // [R]
    PassRows forward, backward;
    int busiest_rank = 0;  // the first with the most rows

    // Bytes of rows from a rank to a rank, [R, R], the diagonal being what stays on a rank. The
    // router weights and their gradients, 4 bytes a row, are not counted.
    std::vector<int64_t> link_bytes(plan::PassKind pass, plan::Copies copies) const;
};
Traffic traffic_of(const PlanRequest& request, Routing routing, const GlobalIds& ids);

// A matrix of link bytes in a few numbers; the diagonal does not count.
struct LinkSummary {
    int64_t total = 0, min = 0, max = 0;
    double mean = 0.0;
    int busiest_source = -1, busiest_destination = -1;
    int64_t most_sent = 0, most_received = 0;  // by one rank
};
LinkSummary summary_of(const std::vector<int64_t>& bytes, int num_ranks);

}  // namespace mok::cli
