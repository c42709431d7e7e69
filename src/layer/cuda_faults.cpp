#include "layer/cuda_faults.h"

#include <cstdio>

#include "comm/fault.h"
#include "comm/group_state.h"
#include "layer/sentences.h"

namespace mok::layer {

std::string CudaFaults::fault_sentence() const {
    const kernels::FaultRecord& f = *fault_.get();
    const double bound = setup_.group.state().options().timeout.count();
    return comm::sentence({setup_.problem.rank, f.sm, f.task, f.wait, f.have, bound});
}

void CudaFaults::break_group(const std::string& sentence) {
    setup_.group.state().break_group(sentence + "; the group is broken", setup_.problem.rank);
}

bool CudaFaults::has_failed() const {
    return fault_.peek(&kernels::FaultRecord::raised) != 0 || setup_.group.state().broken();
}

bool CudaFaults::has_failed_anew() {
    if (failure_was_told_ || !has_failed()) return false;
    failure_was_told_ = true;
    return true;
}

WaitBounds CudaFaults::wait_bounds() const {
    return layer::wait_bounds(setup_.group.state().options().timeout);
}

void CudaFaults::throw_if_broken() {
    if (fault_.peek(&kernels::FaultRecord::raised) != 0) break_group(fault_sentence());
    setup_.group.state().throw_if_broken(setup_.problem.rank);
}

void CudaFaults::throw_unended(const WaitOutcome& outcome) {
    // The stream was waited for and given up: no later call shall be patient with it again.
    failure_was_told_ = true;
    const bool is_of_fault = fault_.peek(&kernels::FaultRecord::raised) != 0;
    const std::string who = "rank " + std::to_string(setup_.problem.rank);
    char waited[32];
    std::snprintf(waited, sizeof(waited), "%.1f s", outcome.waited.count());
    std::string sentence = is_of_fault ? fault_sentence() + ", and " : who + ": ";
    if (outcome.end == WaitEnd::NotInTime) {
        sentence += std::string("the kernels of its stream did not end within ") + waited;
    } else if (is_of_fault) {
        sentence += std::string("its kernel did not end in the ") + waited + " after that";
    } else {
        sentence +=
            std::string("a kernel did not end in the ") + waited + " after the group was broken";
    }
    break_group(sentence);
    throw TimeoutError(sentence + "; the group is broken", setup_.problem.rank, -1);
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
