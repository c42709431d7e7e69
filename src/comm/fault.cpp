#include "comm/fault.h"

#include <cstdio>

namespace mok::comm {

std::string sentence(const Fault& f) {
    char place[96];
    if (plan::is_wgrad(f.task.kind)) {
        std::snprintf(place, sizeof(place), "piece %d, part %d", f.task.piece, f.task.part);
    } else {
        std::snprintf(place, sizeof(place), "tile %d, part %d", f.task.tile, f.task.part);
    }
    char text[320];
    std::snprintf(text, sizeof(text),
                  "rank %d, worker %d: %s of %s waited %.1f s for %s[%d]: %u of %u arrived", f.rank,
                  f.worker, plan::task_name(f.task.kind), place, f.waited_s,
                  plan::signal_name(f.wait.kind), f.wait.index, f.have, f.wait.want);
    return text;
}

}  // namespace mok::comm
