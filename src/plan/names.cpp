#include "plan/signals.h"
#include "plan/task.h"

namespace mok::plan {

const char* task_name(TaskKind kind) {
    static constexpr const char* kNames[kNumTaskKinds] = {
        "DispatchX", "DispatchDY",  "GateUp",    "Down",      "CombineY", "Replay",
        "DownDgrad", "GateUpDgrad", "CombineDX", "GateWgrad", "UpWgrad",  "DownWgrad"};
    return kNames[static_cast<int32_t>(kind)];
}

const char* signal_name(SignalKind kind) {
    static constexpr const char* kNames[] = {
        "x_ready", "d_y_ready", "gate_up_ready", "hidden_ready", "out_ready", "sent", "wgrad_done"};
    return kNames[static_cast<int32_t>(kind)];
}

}  // namespace mok::plan
