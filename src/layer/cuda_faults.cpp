#include "layer/cuda_faults.h"

#include "comm/fault.h"
#include "comm/group_state.h"
#include "layer/sentences.h"

namespace mok::layer {

void CudaFaults::throw_if_broken() {
    comm::GroupState& group = setup_.group.state();
    const int rank = setup_.problem.rank;
    if (fault_.peek(&kernels::FaultRecord::raised) != 0) {
        const kernels::FaultRecord& f = *fault_.get();
        const double bound = group.options().timeout.count();
        const comm::Fault fault{rank, f.sm, f.task, f.wait, f.have, bound};
        group.break_group(comm::sentence(fault) + "; the group is broken", rank);
    }
    group.throw_if_broken(rank);
}

void CudaFaults::throw_table_report() {
    const kernels::TableReport found = *report_.get();
    *report_.get() = {};
    if (found.fault == kernels::TableFault::NumTokens) {
        throw ShapeError(too_many_tokens(setup_.problem, found.bad.home, found.bad.id));
    }
    if (found.fault == kernels::TableFault::Barrier) {
        const int rank = setup_.problem.rank;
        setup_.group.state().break_group("rank " + std::to_string(rank) +
                                             ": the blocks of the route table's kernel did not "
                                             "meet; the group is broken",
                                         rank);
        throw_if_broken();
    }
    if (found.bad.found) throw ShapeError(bad_id(setup_.problem, found.bad, found.bad.id));
}

}  // namespace mok::layer
