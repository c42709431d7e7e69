#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/program.h"
#include "plan/signals.h"

namespace mok::plan::fixture {

// A pass's tasks with their waits and arrivals, in the programs' order: compute, then
// communication.
struct TaskGraph {
    struct Node {
        Task task;
        std::vector<std::pair<int32_t, uint32_t>> waits;     // signal index, wanted count
        std::vector<std::pair<int32_t, uint32_t>> arrivals;  // signal index, count
    };

    explicit TaskGraph(const Pass& pass) : arrivers(num_signals(pass.problem)) {
        num_compute = static_cast<int32_t>(count(pass, Role::Compute));
        num_comm = static_cast<int32_t>(count(pass, Role::Comm));
        for (int32_t i = 0; i < num_compute; ++i) add(pass, decode(pass, Role::Compute, i));
        for (int32_t i = 0; i < num_comm; ++i) add(pass, decode(pass, Role::Comm, i));
    }
    int32_t size() const { return static_cast<int32_t>(nodes.size()); }

    std::vector<Node> nodes;
    std::vector<std::vector<int32_t>> arrivers;  // of each signal
    int32_t num_compute, num_comm;

  private:
    void add(const Pass& pass, const Task& task) {
        Node node{task, {}, {}};
        for_each_wait(pass, task, [&](const Wait& wait) {
            node.waits.emplace_back(signal_index(pass.problem, wait.kind, wait.index), wait.want);
        });
        for_each_arrival(pass, task, [&](const Arrival& arrival) {
            const int32_t index = signal_index(pass.problem, arrival.kind, arrival.index);
            node.arrivals.emplace_back(index, arrival.count);
            auto& list = arrivers[index];
            if (list.empty() || list.back() != size()) list.push_back(size());
        });
        nodes.push_back(std::move(node));
    }
};

// Which tasks end before which begin, whatever the timing. A wait for a signal's whole count is a
// wait for every task that arrives there (test_signals shows that each wait is one), so that this
// relation is exact: it holds for every number of workers, order of claims and speed.
class HappensBefore {
  public:
    explicit HappensBefore(const TaskGraph& graph)
        : words_((graph.size() + 63) / 64),
          before_(graph.size()),
          of_signal_(graph.arrivers.size()) {
        std::vector<int32_t> missing_arrivers(graph.arrivers.size());
        std::vector<std::vector<int32_t>> waiters(graph.arrivers.size());
        std::vector<int32_t> missing_signals(graph.size(), 0);
        for (size_t s = 0; s < graph.arrivers.size(); ++s) {
            missing_arrivers[s] = static_cast<int32_t>(graph.arrivers[s].size());
        }
        for (int32_t i = 0; i < graph.size(); ++i) {
            for (const auto& [signal, want] : graph.nodes[i].waits) {
                waiters[signal].push_back(i);
                ++missing_signals[i];
            }
            if (missing_signals[i] == 0) order_.push_back(i);
        }
        for (size_t next = 0; next < order_.size(); ++next) {
            const int32_t node = order_[next];
            before_[node].assign(words_, 0);
            for (const auto& [signal, want] : graph.nodes[node].waits) {
                unite(before_[node], of_signal_[signal]);
            }
            for (const int32_t signal : signals_of(graph.nodes[node])) {
                of_signal_[signal].resize(words_, 0);
                unite(of_signal_[signal], before_[node]);
                of_signal_[signal][node / 64] |= uint64_t{1} << (node % 64);
                if (--missing_arrivers[signal] > 0) continue;
                for (const int32_t waiter : waiters[signal]) {
                    if (--missing_signals[waiter] == 0) order_.push_back(waiter);
                }
            }
        }
    }
    // Tasks in one order that keeps the relation. Shorter than the graph: the rest wait in a
    // circle.
    const std::vector<int32_t>& order() const { return order_; }
    bool ends_before(int32_t first, int32_t second) const {
        return (before_[second][first / 64] >> (first % 64) & 1) != 0;
    }

  private:
    static std::vector<int32_t> signals_of(const TaskGraph::Node& node) {
        std::vector<int32_t> signals;
        for (const auto& [signal, count] : node.arrivals) {
            if (std::find(signals.begin(), signals.end(), signal) == signals.end()) {
                signals.push_back(signal);
            }
        }
        return signals;
    }
    void unite(std::vector<uint64_t>& into, const std::vector<uint64_t>& from) const {
        for (size_t i = 0; i < from.size(); ++i) into[i] |= from[i];
    }

    size_t words_;
    std::vector<std::vector<uint64_t>> before_;     // [task] tasks that end before it begins
    std::vector<std::vector<uint64_t>> of_signal_;  // [signal] arrivers and what is before them
    std::vector<int32_t> order_;
};

}  // namespace mok::plan::fixture
