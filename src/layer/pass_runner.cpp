#include "layer/pass_runner.h"

#include <algorithm>
#include <cstring>

#include "comm/group_state.h"
#include "cpu/block.h"
#include "cpu/executor.h"
#include "plan/make_problem.h"

namespace mok::layer {
namespace {

void publish_rows(const ConstTensor& from, Bf16* to) {
    const int64_t cols = from.shape[1];
    for (int64_t r = 0; r < from.shape[0]; ++r) {
        if (from.dtype == DType::BF16) {
            std::memcpy(to + r * cols, static_cast<const Bf16*>(from.data) + r * from.stride[0],
                        cols * sizeof(Bf16));
            continue;
        }
        const float* row = static_cast<const float*>(from.data) + r * from.stride[0];
        for (int64_t i = 0; i < cols; ++i) to[r * cols + i] = to_bf16(row[i]);
    }
}

cpu::RowMemory ring_memory(const Workspace::Impl& w) {
    const layer::Memory& m = w.local;
    const plan::WorkspaceMap& map = w.map;
    cpu::RowMemory ring;
    ring.x = m.at<Bf16>(map.x);
    ring.d_y = m.at<Bf16>(map.d_y);
    ring.gate = m.at<Bf16>(map.gate);
    ring.up = m.at<Bf16>(map.up);
    ring.w_hidden = m.at<Bf16>(map.w_hidden);
    ring.d_gate = m.at<Bf16>(map.d_gate);
    ring.d_up = m.at<Bf16>(map.d_up);
    ring.out = m.at<Bf16>(map.out);
    ring.row_weights = m.at<float>(map.row_weights);
    ring.router_partials = m.at<float>(map.router_partials);
    return ring;
}

cpu::RowMemory kept_memory(const Context::Impl& c) {
    // The operands' block begins where the forward's part of the map ends.
    const auto operand = [&c](int64_t offset) {
        return c.operands.data() + (offset - c.saved_bytes);
    };
    cpu::RowMemory kept{};
    kept.gate = c.saved.at<Bf16>(c.map.gate);
    kept.up = c.saved.at<Bf16>(c.map.up);
    kept.x = c.saved.at<Bf16>(c.map.x);
    if (c.operands.data() != nullptr) {
        kept.w_hidden = reinterpret_cast<Bf16*>(operand(c.map.w_hidden));
        kept.d_gate = reinterpret_cast<Bf16*>(operand(c.map.d_gate));
        kept.d_up = reinterpret_cast<Bf16*>(operand(c.map.d_up));
        kept.d_y = reinterpret_cast<Bf16*>(operand(c.map.d_y));
        kept.row_weights = reinterpret_cast<float*>(operand(c.map.row_weights));
    }
    return kept;
}

cpu::SharedMemory shared_memory(const Workspace::Impl& w, const PassArguments& a) {
    const layer::Memory& m = w.local;
    cpu::SharedMemory shared{};
    shared.w_hidden = m.at<Bf16>(w.map.shared_w_hidden);
    shared.d_gate = m.at<Bf16>(w.map.shared_d_gate);
    shared.d_up = m.at<Bf16>(w.map.shared_d_up);
    shared.out = m.at<Bf16>(w.map.shared_out);
    shared.router_partials = m.at<float>(w.map.shared_router_partials);
    shared.weights = a.shared_weights.data();
    if (a.context == nullptr) return shared;
    const Context::Impl& c = *a.context;
    shared.gate = c.saved.at<Bf16>(c.map.shared_gate);
    shared.up = c.saved.at<Bf16>(c.map.shared_up);
    if (plan::keeps_wgrad_operands(a.kind)) {
        const auto operand = [&c](int64_t offset) {
            return reinterpret_cast<Bf16*>(c.operands.data() + (offset - c.saved_bytes));
        };
        shared.w_hidden = operand(c.map.shared_w_hidden);
        shared.d_gate = operand(c.map.shared_d_gate);
        shared.d_up = operand(c.map.shared_d_up);
    }
    return shared;
}

}  // namespace

void publish_inputs(Workspace::Impl& w, const Inputs& in) {
    const cpu::Window& window = w.windows[w.problem.rank];
    publish_rows(in.x, window.x);
    const ConstTensor& weights = in.topk_weights;
    for (int64_t token = 0; token < weights.shape[0]; ++token) {
        const float* row = static_cast<const float*>(weights.data) + token * weights.stride[0];
        std::copy_n(row, weights.shape[1], window.topk_weights + token * weights.shape[1]);
    }
}

void publish_d_out(Workspace::Impl& w, const ConstTensor& d_out) {
    publish_rows(d_out, w.windows[w.problem.rank].d_y);
}

std::vector<float> shared_weights_of(const Workspace::Impl& w, const Inputs& in) {
    if (w.shape.shared_intermediate == 0) return {};
    std::vector<float> weights(in.x.shape[0], 1.0f);
    if (in.shared_weights.present()) {
        const float* given = static_cast<const float*>(in.shared_weights.data);
        std::copy_n(given, weights.size(), weights.begin());
    }
    return weights;
}

int64_t kept_rows(const Workspace::Impl& w, const Schedule::Impl& s) {
    return std::min(w.problem.context_rows, plan::num_slots(w.problem, s.table));
}

void reserve_activations(const Workspace::Impl& w, const Schedule::Impl& s, Context::Impl& c) {
    c.holds = Context::Impl::Holds::Nothing;
    c.schedule = s.identity;
    c.rows = kept_rows(w, s);
    c.tokens = s.num_tokens;
    c.map = plan::context_map(w.problem, c.rows, c.tokens, true);
    c.saved_bytes = plan::context_map(w.problem, c.rows, c.tokens, false).total;
    c.saved.reserve(c.saved_bytes);
    c.operands = layer::Memory();
}

void reserve_operands(const Workspace::Impl&, Context::Impl& c) {
    c.operands.reserve(c.map.total - c.saved_bytes);
}

cpu::RankPass make_pass(Workspace::Impl& w, const Schedule::Impl& s, const PassArguments& a) {
    cpu::RankPass d{};
    d.pass = {a.kind, w.problem, s.table};
    d.pass.problem.num_tokens = static_cast<int32_t>(s.num_tokens);
    // A forward without a context has nowhere to keep x.
    d.pass.problem.keep_x = w.problem.keep_x && a.context != nullptr;
    d.pass.problem.minibatch_rows = plan::minibatch_rows(w.problem, w.num_workers, a.kind);
    d.activation = w.shape.activation;
    d.saves_context = a.context != nullptr;
    d.weights = a.weights;
    d.grads = a.grads;
    d.windows = w.windows.data();
    d.ring = ring_memory(w);
    if (a.context != nullptr) d.kept = kept_memory(*a.context);
    d.shared = shared_memory(w, a);
    d.wgrad_scratch = w.local.at<float>(w.map.wgrad_scratch);
    d.counters = &w.counters;
    return d;
}

void run_program(Workspace::Impl& w, const cpu::RankPass& d) {
    comm::GroupState& group = w.group.state();
    cpu::Signals signals(d.problem(), w.local.at<uint32_t>(w.map.signals));
    const cpu::ExecutorOptions options{w.num_workers, group.options().timeout, w.diagnostics,
                                       [&group] { return group.broken(); }};
    std::optional<comm::Fault> fault;
    try {
        fault = cpu::execute(d.pass, signals, options,
                             [&d](const plan::Task& task) { cpu::run_task(d, task); });
    } catch (const InjectedDeath&) {
        throw;  // dies without a word
    } catch (const std::exception& e) {
        w.group.abandon(e.what());
        throw;
    }
    if (fault) group.break_group(comm::sentence(*fault) + "; the group is broken", fault->rank);
    group.throw_if_broken(w.problem.rank);
}

}  // namespace mok::layer
