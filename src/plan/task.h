#pragma once

#include <cstdint>

#include "math/host_device.h"

namespace mok::plan {

// What a worker does in one go. w is a route's router weight (the shared expert's token weight).
enum class TaskKind : int32_t {
    DispatchX,    // pull the x rows of a tile's leads from their home ranks
    DispatchDY,   // the same for d_y, and each row's w
    GateUp,       // hidden = activate(x Wg^T + bg, x Wu^T + bu); saves gate and up below C
    Down,         // y = hidden Wd^T + bd
    CombineY,     // push y rows to [token * K + choice] at their home ranks
    Replay,       // gate and up of rows that the context does not hold
    DownDgrad,    // d_hidden' = d_y Wd; router gradient; d_gate, d_up, w * hidden
    GateUpDgrad,  // d_x = d_gate Wg + d_up Wu
    CombineDX,    // push d_x rows and router gradients to their home ranks
    GateWgrad,    // d_Wg = d_gate^T x, and d_bg
    UpWgrad,      // d_Wu = d_up^T x, and d_bu
    DownWgrad,    // d_Wd = d_y^T (w * hidden), and d_bd
};
inline constexpr int32_t kNumTaskKinds = 12;

enum class Role : int32_t { Compute, Comm };
inline constexpr int32_t kNumRoles = 2;

struct Task {
    TaskKind kind;
    int32_t tile;   // row tile (problem.h numbers them), -1 for weight gradients
    int32_t part;   // column tile; of a wgrad its tile; of a comm task its group of rows
    int32_t macro;  // of a wgrad of a routed expert: its macrobatch, else -1
    int32_t piece;  // of a wgrad: routed piece, or -1 for the shared expert
};

MOK_HD inline bool is_wgrad(TaskKind kind) {
    return kind >= TaskKind::GateWgrad;
}
MOK_HD inline Role role_of(TaskKind kind) {
    return kind == TaskKind::DispatchX || kind == TaskKind::DispatchDY ||
                   kind == TaskKind::CombineY || kind == TaskKind::CombineDX
               ? Role::Comm
               : Role::Compute;
}

// The name that faults, traces and pictures print.
const char* task_name(TaskKind kind);

}  // namespace mok::plan
