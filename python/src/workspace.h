#pragma once

#include <nanobind/nanobind.h>
#include <openmok/layer.h>

#include <initializer_list>
#include <mutex>
#include <vector>

#include "tensors.h"

namespace mok::python {

// A workspace, whose calls take turns: with the interpreter released, threads could meet in one.
struct SharedWorkspace {
    SharedWorkspace(const Group& group, const LayerShape& shape, const Tuning& tuning,
                    int64_t max_tokens)
        : device(group.device()),
          max_tokens(max_tokens),
          workspace(group, shape, tuning, max_tokens) {}
    Device device;
    int64_t max_tokens;
    // A call was on another stream than the default one, so that a graph may hold it.
    bool may_be_captured = false;
    Workspace workspace;
    std::mutex turn;
};

// Checks where the tensors lie, then makes the call with the interpreter released.
template <class Call>
void run(SharedWorkspace& w, std::initializer_list<const std::vector<Place>*> tensors, Call call) {
    for (const std::vector<Place>* places : tensors) {
        for (const Place& place : *places) check_place(w.device, place);
    }
    const nb::gil_scoped_release released;
    const std::lock_guard lock(w.turn);
    call(w.workspace);
}

}  // namespace mok::python
