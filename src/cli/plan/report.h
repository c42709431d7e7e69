#pragma once

#include <cstdint>
#include <vector>

#include "cli/plan/traffic.h"
#include "plan/granularity.h"
#include "plan/memory_map.h"
#include "plan/task.h"

namespace mok::cli {

// Minibatch rows of one pass: the rule's, and those that the plan uses.
struct MinibatchRows {
    plan::Granularity rule;
    int32_t used;
};

// Bytes of one rank; that of rank 0, which owns the most experts. They hold for any routing.
struct RankMemory {
    plan::WindowMap window;
    plan::WorkspaceMap workspace;
    int64_t ring_rows = 0;
    int64_t ring_bytes = 0;           // the workspace's buffers of ring rows
    int64_t fp8_ring_bytes = 0;       // of these in FP8, with their scales
    int64_t fp8_window_bytes = 0;     // of the window: x in FP8
    int64_t fp8_weight_bytes = 0;     // one layer's, both orientations; in memory of its own
    int64_t mxfp8_operand_bytes = 0;  // the same as BF16 numbers, on Hopper
    int64_t shared_bytes = 0;         // of the shared expert's rows
    int64_t scratch_bytes = 0;        // one expert's weight gradients
    int64_t signal_bytes = 0;
    int64_t cuda_workspace_bytes = 0;  // of a workspace on a GPU, its window included
    int64_t table_bytes = 0;           // one call's route table
    int64_t context_bytes = 0;         // one call's, if every route came to this rank
};

// The context of one call on the rank where it is largest.
struct ContextBytes {
    int64_t forward = 0;        // what a forward leaves
    int64_t with_operands = 0;  // and what backward_input adds for a later wgrad
};

// Tasks of one kind in one rank's pass.
struct KindTasks {
    plan::TaskKind kind{};
    bool shared = false;  // the shared expert's
    int64_t tasks = 0;
    // Of a full minibatch of the kind's tiles; 0 for weight gradients, which have none.
    int64_t minibatch_tasks = 0;
};
struct PassTasks {
    plan::PassKind pass{};
    std::vector<KindTasks> kinds;  // in the order of their first task, compute before comm
};

struct RoutingReport {
    Traffic traffic;
    ContextBytes context;
    std::vector<PassTasks> passes;  // forward and backward, of the busiest rank

    int64_t total_rows() const;
    int64_t total_slots() const;
};

struct PlanReport {
    PlanRequest request;
    MinibatchRows forward_rows, backward_rows;
    RankMemory memory;
    std::vector<RoutingReport> routings;  // balanced, Zipf
};

// Throws ShapeError, one sentence, where the layer cannot be planned.
PlanReport plan_report(const PlanRequest& request);

// For people, and for machines (JSON). With all_links the whole matrices.
std::string report_text(const PlanReport& report, bool all_links);
std::string report_json(const PlanReport& report, bool all_links);

}  // namespace mok::cli
