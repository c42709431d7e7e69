#include "layer/cpu_engine.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <thread>

#include "comm/fault.h"
#include "comm/group_state.h"
#include "cpu/block.h"
#include "cpu/executor.h"
#include "cpu/fp8_weights.h"
#include "cpu/reduce.h"
#include "layer/sentences.h"
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

int64_t id_at(const ConstTensor& ids, int64_t token, int64_t choice) {
    const int64_t at = token * ids.stride[0] + choice * ids.stride[1];
    return ids.dtype == DType::I32 ? static_cast<const int32_t*>(ids.data)[at]
                                   : static_cast<const int64_t*>(ids.data)[at];
}

// Numbers as they are published. What int32 cannot hold is out of range for any number of tokens or
// experts, and so is what it becomes here.
int32_t narrow(int64_t number) {
    constexpr int64_t kLow = std::numeric_limits<int32_t>::min();
    constexpr int64_t kHigh = std::numeric_limits<int32_t>::max();
    return static_cast<int32_t>(std::clamp(number, kLow, kHigh));
}

// Every rank has found the same bad id. Its home tells the others the number that the caller gave.
[[noreturn]] void refuse_id(const Setup& setup, const ConstTensor& own_ids,
                            const plan::BadId& bad) {
    const int rank = setup.problem.rank;
    int64_t id = rank == bad.home ? id_at(own_ids, bad.token, bad.choice) : 0;
    const std::vector<comm::Bytes> of_ranks = setup.group.state().exchange_bytes(
        rank, std::as_bytes(std::span(&id, 1)), "exchange of a bad id");
    std::memcpy(&id, of_ranks[bad.home].data(), sizeof(id));
    throw ShapeError(bad_id(setup.problem, bad, id));
}

cpu::Fp8Row fp8_rows_at(const plan::Fp8RowsMap& map, std::byte* at) {
    return {reinterpret_cast<E4m3*>(at + map.elements), at + map.scales};
}

cpu::Window window_at(const plan::WindowMap& map, std::byte* at) {
    return {reinterpret_cast<Bf16*>(at + map.x),
            reinterpret_cast<Bf16*>(at + map.d_y),
            reinterpret_cast<float*>(at + map.topk_weights),
            reinterpret_cast<Bf16*>(at + map.combine),
            reinterpret_cast<float*>(at + map.d_topk_weights),
            fp8_rows_at(map.x8, at)};
}

int default_workers(const Tuning& tuning, int num_ranks) {
    if (tuning.max_workers > 0) return tuning.max_workers;
    const int threads = static_cast<int>(std::thread::hardware_concurrency());
    return std::max(1, threads / num_ranks);
}

cpu::RowMemory ring_memory(const Memory& m, const plan::WorkspaceMap& map) {
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
    ring.x8 = fp8_rows_at(map.x8, m.data());
    ring.d_y8 = fp8_rows_at(map.d_y8, m.data());
    ring.gate8 = fp8_rows_at(map.gate8, m.data());
    ring.up8 = fp8_rows_at(map.up8, m.data());
    ring.d_gate8 = fp8_rows_at(map.d_gate8, m.data());
    ring.d_up8 = fp8_rows_at(map.d_up8, m.data());
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
    kept.gate8 = fp8_rows_at(c.map.gate8, c.saved.data());
    kept.up8 = fp8_rows_at(c.map.up8, c.saved.data());
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

}  // namespace

CpuEngine::CpuEngine(const Setup& setup)
    : setup_(setup), num_workers_(default_workers(setup.tuning, setup.group.size())) {
    window_ = std::make_shared<Memory>(host_memory(setup_.window_map.total));
    local_ = host_memory(setup_.map.total);
    setup_.group.state().exchange(
        setup_.group.rank(), &window_, "exchange of windows", [&](const auto& all) {
            for (const void* of_rank : all) {
                all_windows_.push_back(*static_cast<const std::shared_ptr<Memory>*>(of_rank));
                windows_.push_back(window_at(setup_.window_map, all_windows_.back()->data()));
            }
        });
}

void CpuEngine::build_schedule(Schedule::Impl& s, const ConstTensor& topk_ids,
                               int32_t* expert_rows) {
    const plan::Problem& p = setup_.problem;
    const plan::WindowMap& map = setup_.window_map;
    const int64_t own_tokens = s.num_tokens <= p.max_tokens ? s.num_tokens : 0;
    const int64_t num_ids = own_tokens * p.top_k;
    const plan::ScheduleMap places = plan::schedule_map(p, own_tokens);
    if (s.memory.data() == nullptr) s.memory = host_memory(places.total);
    std::memset(s.memory.data(), 0, places.total);
    int32_t* const own_ids = s.memory.at<int32_t>(places.ids);

    // Publish this rank's ids. Two buffers take turns: when a rank writes one again, every rank has
    // come to the barrier of the call between, and so has read it.
    const int turn = static_cast<int>(num_schedules_++ % 2);
    *window_->at<int32_t>(map.num_tokens[turn]) = narrow(s.num_tokens);
    for (int64_t i = 0; i < num_ids; ++i) {
        own_ids[i] = narrow(id_at(topk_ids, i / p.top_k, i % p.top_k));
    }
    std::copy_n(own_ids, num_ids, window_->at<int32_t>(map.ids[turn]));
    setup_.group.state().barrier(p.rank, "barrier after the ids");

    std::vector<const int32_t*> ids;
    std::vector<int32_t> num_tokens;
    for (int r = 0; r < p.num_ranks; ++r) {
        ids.push_back(all_windows_[r]->at<const int32_t>(map.ids[turn]));
        num_tokens.push_back(*all_windows_[r]->at<const int32_t>(map.num_tokens[turn]));
        if (num_tokens.back() > p.max_tokens) {
            throw ShapeError(too_many_tokens(p, r, num_tokens.back()));
        }
    }
    find_table(s);
    const plan::BadId bad = plan::build_route_table(p, ids.data(), num_tokens.data(), s.table);
    if (bad.found) refuse_id(setup_, topk_ids, bad);
    count_tokens(s);
    if (expert_rows != nullptr) std::ranges::copy(s.tokens_per_expert, expert_rows);
}

void CpuEngine::restore_schedule(Schedule::Impl& s) {
    find_table(s);
    count_tokens(s);
}

void CpuEngine::find_table(Schedule::Impl& s) const {
    const plan::Problem& p = setup_.problem;
    const plan::ScheduleMap places = plan::schedule_map(p, s.num_tokens);
    s.table = plan::route_table_at(plan::table_problem(p, s.num_tokens),
                                   s.memory.at<int32_t>(places.table));
    s.ids = s.memory.at<int32_t>(places.ids);
}

void CpuEngine::count_tokens(Schedule::Impl& s) const {
    const plan::Problem& p = setup_.problem;
    for (int32_t e = 0; e < plan::num_local_experts(p); ++e) {
        s.tokens_per_expert.push_back(plan::segment_rows(p, s.table, e));
    }
}

std::span<const int32_t> CpuEngine::tokens_per_expert(Schedule::Impl& s) {
    return s.tokens_per_expert;
}

void CpuEngine::quantize_weights(const Weights& weights, std::byte* to) {
    cpu::quantise_experts(setup_.problem, weights, to);
}

void CpuEngine::begin_pass(const PassArguments& a) {
    const Inputs& in = a.inputs;
    shared_weights_.clear();
    if (setup_.shape.shared_intermediate == 0) return;
    shared_weights_.assign(in.x.shape[0], 1.0f);
    if (in.shared_weights.present()) {
        std::copy_n(static_cast<const float*>(in.shared_weights.data), shared_weights_.size(),
                    shared_weights_.begin());
    }
}

int64_t CpuEngine::kept_rows(const Schedule::Impl& s) const {
    return std::min(setup_.problem.context_rows, plan::num_slots(s.table));
}

void CpuEngine::publish_inputs(const PassArguments& a) {
    const cpu::Window& window = windows_[setup_.problem.rank];
    publish_rows(a.inputs.x, window.x);
    const plan::Problem& p = setup_.problem;
    const bool in_fp8 = plan::is_fp8(p) && p.fp8_dispatch && !plan::is_backward(a.kind);
    for (int64_t token = 0; in_fp8 && token < a.inputs.x.shape[0]; ++token) {
        cpu::quantise_row(p.precision, window.x + token * p.hidden, p.hidden,
                          {window.x8.elements + token * plan::fp8_padded(p.hidden),
                           window.x8.scales + token * plan::fp8_scale_bytes(p.hidden)});
    }
    const ConstTensor& weights = a.inputs.topk_weights;
    for (int64_t token = 0; token < weights.shape[0]; ++token) {
        const float* row = static_cast<const float*>(weights.data) + token * weights.stride[0];
        std::copy_n(row, weights.shape[1], window.topk_weights + token * weights.shape[1]);
    }
}

void CpuEngine::publish_d_out(const PassArguments& a) {
    publish_rows(a.d_out, windows_[setup_.problem.rank].d_y);
}

void CpuEngine::barrier_before() {
    setup_.group.state().barrier(setup_.problem.rank, "barrier before a pass");
}
void CpuEngine::barrier_after() {
    setup_.group.state().barrier(setup_.problem.rank, "barrier after a pass");
}

cpu::SharedMemory CpuEngine::shared_memory(const PassArguments& a) const {
    const plan::WorkspaceMap& map = setup_.map;
    cpu::SharedMemory shared{};
    shared.w_hidden = local_.at<Bf16>(map.shared_w_hidden);
    shared.d_gate = local_.at<Bf16>(map.shared_d_gate);
    shared.d_up = local_.at<Bf16>(map.shared_d_up);
    shared.out = local_.at<Bf16>(map.shared_out);
    shared.router_partials = local_.at<float>(map.shared_router_partials);
    shared.weights = shared_weights_.data();
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

cpu::RankPass CpuEngine::make_pass(const PassArguments& a) {
    cpu::RankPass d{};
    d.pass = {a.kind, setup_.problem, a.schedule.table};
    d.pass.problem.num_tokens = static_cast<int32_t>(a.schedule.num_tokens);
    // A forward without a context has nowhere to keep x.
    d.pass.problem.keep_x = setup_.problem.keep_x && a.context != nullptr;
    d.pass.problem.minibatch_rows = plan::minibatch_rows(setup_.problem, num_workers_, a.kind);
    d.activation = setup_.shape.activation;
    d.saves_context = a.context != nullptr;
    d.weights = a.weights;
    d.grads = a.weight_grads;
    d.windows = windows_.data();
    d.ring = ring_memory(local_, setup_.map);
    if (a.context != nullptr) d.kept = kept_memory(*a.context);
    d.shared = shared_memory(a);
    if (a.weights.fp8 != nullptr) d.fp8_weights = a.weights.fp8->impl().memory.data();
    d.wgrad_scratch = local_.at<float>(setup_.map.wgrad_scratch);
    d.counters = &counters_;
    return d;
}

void CpuEngine::run_program(const PassArguments& a) {
    comm::GroupState& group = setup_.group.state();
    const cpu::RankPass d = make_pass(a);
    cpu::Signals signals(d.problem(), local_.at<uint32_t>(setup_.map.signals));
    const cpu::ExecutorOptions options{num_workers_, group.options().timeout, diagnostics_,
                                       [&group] { return group.broken(); }};
    std::optional<comm::Fault> fault;
    try {
        fault = cpu::execute(d.pass, signals, options,
                             [&d](const plan::Task& task) { cpu::run_task(d, task); });
    } catch (const InjectedDeath&) {
        throw;  // dies without a word
    } catch (const std::exception& e) {
        setup_.group.abandon(e.what());
        throw;
    }
    if (fault) group.break_group(comm::sentence(*fault) + "; the group is broken", fault->rank);
    group.throw_if_broken(setup_.problem.rank);
}

void CpuEngine::run_shared_wgrad(const PassArguments& a) {
    const cpu::RankPass pass = make_pass(a);
    for (int64_t i = 0; i < plan::shared_wgrad_tasks(pass.pass); ++i) {
        cpu::run_task(pass, plan::decode(pass.pass, plan::Role::Compute, i));
    }
}

void CpuEngine::reduce_output(const PassArguments& a) {
    cpu::reduce_output(make_pass(a), a.schedule.ids, a.out);
}

void CpuEngine::reduce_input_grads(const PassArguments& a) {
    cpu::reduce_input_grads(make_pass(a), a.schedule.ids, a.input_grads);
}

void CpuEngine::set_stream(void*) {
    throw ShapeError("set_stream: expected a workspace of a CUDA group, found one of the CPU");
}

void CpuEngine::synchronize() {
    setup_.group.state().throw_if_broken(setup_.problem.rank);
}

void CpuEngine::poison() {
    std::memset(window_->data(), 0xff, window_->bytes());
    std::memset(local_.data(), 0xff, local_.bytes());
}

void CpuEngine::set_diagnostics(const Diagnostics& diagnostics) {
    if (diagnostics.trace_capacity != 0) {
        throw ShapeError("diagnostics.trace_capacity: expected 0 on a CPU group, found " +
                         std::to_string(diagnostics.trace_capacity));
    }
    diagnostics_ = diagnostics;
}

LinkBytes CpuEngine::link_bytes() {
    LinkBytes bytes;
    for (int r = 0; r < setup_.group.size(); ++r) {
        bytes.pulled.push_back(counters_.pulled[r]);
        bytes.pushed.push_back(counters_.pushed[r]);
    }
    return bytes;
}

std::shared_ptr<Engine> make_cpu_engine(const Setup& setup) {
    return std::make_shared<CpuEngine>(setup);
}

}  // namespace mok::layer
