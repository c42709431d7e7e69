#include "layer/cuda_engine.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>

#include "comm/group_state.h"
#include "layer/cuda_check.h"
#include "layer/cuda_unended.h"
#include "layer/sentences.h"

namespace mok::layer {
namespace {

const char* pass_name(plan::PassKind kind) {
    switch (kind) {
        case plan::PassKind::Forward:
            return "forward";
        case plan::PassKind::Recompute:
            return "recompute";
        case plan::PassKind::Backward:
            return "backward";
        case plan::PassKind::BackwardInput:
            return "backward_input";
        default:
            return "wgrad";
    }
}

int compute_capability(int device) {  // its first number
    int major = 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "the compute capability");
    return major;
}

int usable_sms(const Setup& setup, int device) {
    int all = 0;
    check_cuda(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device),
               "the number of multiprocessors");
    const int most = setup.tuning.max_workers;
    return most > 0 ? std::min(most, all) : all;
}

}  // namespace

CudaEngine::CudaEngine(const Setup& setup)
    : setup_(setup), device_(setup.group.device().index), places_(device_) {
    check_cuda_tuning(setup_);
    refuse_unended_kernels();
    const DeviceScope current(device_);
    const plan::Problem& p = setup_.problem;
    num_sms_ = usable_sms(setup_, device_);
    has_block_scales_ = compute_capability(device_) == 10;
    check_cuda_precision(setup_, has_block_scales_);
    pool_ = std::make_shared<DevicePool>(device_);
    local_ = pool_->take(local_bytes(setup_.map), "workspace");
    const int64_t scratch_bytes = kernels::table_scratch_bytes(p);
    table_scratch_ = pool_->take(scratch_bytes, "scratch of the route table");
    fp8_slots_ = pool_->take(plan::fp8_slots_map(p).total, "operands of weight gradients");
    diagnostics_.emplace(setup_, *pool_);
    // Of a table without slots only these are read: segment_begin, home_begin, macro_piece_begin.
    const int64_t experts = plan::num_local_experts(p);
    no_routes_ = pool_->take((experts + 1) * (p.num_ranks + 1) * plan::kBytesI32, "an empty table");
    peers_ = setup_.group.state().is_one_process()
                 ? make_virtual_peers(setup_.group, setup_.window_map.total)
                 : make_process_peers(setup_.group, setup_.window_map);

    std::vector<const void*> pointers;
    for (int turn = 0; turn < 2; ++turn) {
        for (const int64_t at : {setup_.window_map.ids[turn], setup_.window_map.num_tokens[turn]}) {
            for (int r = 0; r < p.num_ranks; ++r) pointers.push_back(peers_->window(r) + at);
        }
    }
    const int64_t pointer_bytes = static_cast<int64_t>(pointers.size() * sizeof(void*));
    id_pointers_ = pool_->take(pointer_bytes, "addresses of ids");
    check_cuda(
        cudaMemcpy(id_pointers_.data(), pointers.data(), pointer_bytes, cudaMemcpyHostToDevice),
        "addresses of ids");
    check_cuda(cudaMemset(table_scratch_.data(), 0, scratch_bytes), "clearing the scratch");
    check_cuda(cudaMemset(no_routes_.data(), 0, no_routes_.bytes()), "clearing a table");
    check_cuda(cudaEventCreateWithFlags(&stream_changed_, cudaEventDisableTiming), "an event");
    check_cuda(cudaDeviceSynchronize(), "clearing the workspace");
}

CudaEngine::~CudaEngine() {
    // Kernels may still write what is freed next. The stream may be gone already.
    const DeviceScope current(device_);
    peers_->stop_if_broken();
    if (!has_unended_kernels()) cudaDeviceSynchronize();
    cudaEventDestroy(stream_changed_);
}

// ---- Schedule ---------------------------------------------------------------------------------
void CudaEngine::build_schedule(Schedule::Impl& s, const ConstTensor& topk_ids,
                                int32_t* expert_rows) {
    const plan::Problem& p = setup_.problem;
    const plan::WindowMap& map = setup_.window_map;
    const DeviceScope current(device_);
    require_usable();
    places_.require("topk_ids", topk_ids);
    const bool fits = s.num_tokens <= p.max_tokens;
    if (!fits && p.num_ranks == 1) throw ShapeError(too_many_tokens(p, p.rank, s.num_tokens));
    nvtxRangePushA("schedule");

    // Ranks that were given too many tokens build a table all the same: the others wait for it.
    const plan::ScheduleMap places =
        plan::schedule_map(p, std::min<int64_t>(s.num_tokens, p.max_tokens));
    if (s.memory.data() == nullptr) s.memory = pool_->take(places.total, "route table");
    places_.require("schedule", {s.memory.data(), DType::I32, {1}});
    places_.require("tokens_per_expert", {expert_rows, DType::I32, {s.num_experts}});
    find_table(s);

    // Publish this rank's ids. Two buffers take turns: when a rank writes one again, every rank has
    // come to the barrier of the call between, and so has read it. What is captured may run again
    // at once, or next to a call of the same turn: there nobody reads ids before it begins or after
    // it ends.
    const bool is_repeatable = p.num_ranks > 1 && is_capturing(stream_);
    if (is_repeatable) peers_->meet(stream_, "barrier before the ids");
    const int turn = static_cast<int>(num_schedules_++ % 2);
    std::byte* const window = peers_->window(p.rank);
    kernels::PublishIds publish{};
    publish.from = topk_ids.data;
    publish.dtype = topk_ids.dtype;
    publish.rows = fits ? s.num_tokens : 0;
    publish.top_k = p.top_k;
    publish.row_stride = topk_ids.stride[0];
    publish.choice_stride = topk_ids.stride[1];
    publish.window = reinterpret_cast<int32_t*>(window + map.ids[turn]);
    publish.own = s.memory.at<int32_t>(places.ids);
    publish.num_tokens = static_cast<int32_t>(std::min<int64_t>(s.num_tokens, INT32_MAX));
    publish.num_tokens_at = reinterpret_cast<int32_t*>(window + map.num_tokens[turn]);
    check_cuda(kernels::launch_publish_ids(publish, stream_), "publishing ids");
    peers_->meet(stream_, "barrier after the ids");

    const int64_t stride = p.num_ranks * static_cast<int64_t>(sizeof(void*));
    const kernels::TableInputs inputs{id_pointers_.at<const int32_t*>(2 * turn * stride),
                                      id_pointers_.at<const int32_t*>((2 * turn + 1) * stride)};
    check_cuda(
        kernels::launch_build_table(p, inputs, {s.table, expert_rows, faults_.table_report()},
                                    table_scratch_.data(), num_sms_, stream_),
        "the route table");
    if (is_repeatable) peers_->meet(stream_, "barrier after the route table");
    nvtxRangePop();
    if (!fits) throw ShapeError(too_many_tokens(p, p.rank, s.num_tokens));
}

void CudaEngine::restore_schedule(Schedule::Impl& s) {
    places_.require("schedule", {s.memory.data(), DType::I32, {1}});
    find_table(s);
}

void CudaEngine::find_table(Schedule::Impl& s) const {
    const plan::Problem& p = setup_.problem;
    const int64_t tokens = std::min<int64_t>(s.num_tokens, p.max_tokens);
    const plan::ScheduleMap places = plan::schedule_map(p, tokens);
    s.table =
        plan::route_table_at(plan::table_problem(p, tokens), s.memory.at<int32_t>(places.table));
    s.ids = s.memory.at<int32_t>(places.ids);
}

std::span<const int32_t> CudaEngine::tokens_per_expert(Schedule::Impl& s) {
    const plan::Problem& p = setup_.problem;
    synchronize();
    const DeviceScope current(device_);
    s.tokens_per_expert.resize(s.num_experts);
    const size_t pitch = (p.num_ranks + 1) * sizeof(int32_t);
    if (s.num_experts > 0) {
        check_cuda(cudaMemcpy2DAsync(s.tokens_per_expert.data(), sizeof(int32_t),
                                     s.table.home_begin + p.num_ranks, pitch, sizeof(int32_t),
                                     s.num_experts, cudaMemcpyDeviceToHost, stream_),
                   "reading tokens per expert");
    }
    check_cuda(cudaStreamSynchronize(stream_), "reading tokens per expert");
    return s.tokens_per_expert;
}

// ---- A pass -----------------------------------------------------------------------------------
void CudaEngine::begin_pass(const PassArguments& a) {
    current_.emplace(device_);
    try {
        require_usable();
        places_.require(a);
        check_cuda_gradients(a);
    } catch (...) {
        current_.reset();
        throw;
    }
    nvtxRangePushA(pass_name(a.kind));
    publisher_.emplace(*pool_);
}

void CudaEngine::end_pass() {
    if (publisher_ && is_capturing(stream_)) {
        for (Memory& copy : publisher_->release()) captured_.push_back(std::move(copy));
    }
    publisher_.reset();
    nvtxRangePop();
    current_.reset();
}

int64_t CudaEngine::kept_rows(const Schedule::Impl& s) const {
    return plan::max_kept_rows(setup_.problem, s.num_tokens);
}

Memory CudaEngine::allocate(int64_t bytes) {
    return pool_->take(bytes, "context");
}

const Bf16* CudaEngine::publish_rows(const ConstTensor& rows, int64_t offset) {
    Bf16* const published = reinterpret_cast<Bf16*>(peers_->window(setup_.problem.rank) + offset);
    const int64_t tokens = rows.shape[0], hidden = rows.shape[1];
    if (tokens == 0) return published;
    const bool is_bf16 = rows.dtype == DType::BF16;
    const bool contiguous = tokens == 1 || rows.stride[0] == hidden;
    const bool aligned = reinterpret_cast<uintptr_t>(rows.data) % 16 == 0;
    if (setup_.group.size() == 1 && is_bf16 && contiguous && aligned) {
        return static_cast<const Bf16*>(rows.data);
    }
    if (is_bf16 && (contiguous || rows.stride[0] > hidden)) {
        const size_t row_bytes = hidden * sizeof(Bf16);
        const size_t pitch = contiguous ? row_bytes : rows.stride[0] * sizeof(Bf16);
        check_cuda(cudaMemcpy2DAsync(published, row_bytes, rows.data, pitch, row_bytes, tokens,
                                     cudaMemcpyDeviceToDevice, stream_),
                   "publishing rows");
    } else {
        publisher_->copy(rows, published, DType::BF16);
    }
    return published;
}

const float* CudaEngine::publish_topk_weights(const ConstTensor& weights) {
    const int64_t tokens = weights.shape[0], top_k = weights.shape[1];
    if (setup_.group.size() == 1 && (tokens <= 1 || weights.stride[0] == top_k)) {
        return static_cast<const float*>(weights.data);
    }
    float* const published = reinterpret_cast<float*>(peers_->window(setup_.problem.rank) +
                                                      setup_.window_map.topk_weights);
    publisher_->copy(weights, published, DType::F32);
    return published;
}

void CudaEngine::publish_inputs(const PassArguments& a) {
    const Weights& w = a.weights;
    const std::byte* const nothing = local_.data();
    CudaPublisher& publisher = *publisher_;
    tensors_ = {};
    tensors_.x = publish_rows(a.inputs.x, setup_.window_map.x);
    // A forward needs this rank's own weights only, in its last step.
    if (plan::is_backward(a.kind)) {
        tensors_.topk_weights = publish_topk_weights(a.inputs.topk_weights);
    }
    // In FP8 the routed experts' matrices are those of w.fp8.
    const bool fp8 = plan::is_fp8(setup_.problem);
    tensors_.gate = publisher.matrices(fp8 ? ConstTensor{} : w.gate, nothing);
    tensors_.up = publisher.matrices(fp8 ? ConstTensor{} : w.up, nothing);
    tensors_.down = publisher.matrices(fp8 ? ConstTensor{} : w.down, nothing);
    tensors_.shared_gate = publisher.matrices(w.shared_gate, nothing);
    tensors_.shared_up = publisher.matrices(w.shared_up, nothing);
    tensors_.shared_down = publisher.matrices(w.shared_down, nothing);
    const auto bias = [&publisher](const ConstTensor& t, bool& there, const Bf16*& at) {
        there = t.present();
        if (there) at = publisher.rows(t);
    };
    bias(w.gate_bias, tensors_.biases.gate, tensors_.biases.gate_at);
    bias(w.up_bias, tensors_.biases.up, tensors_.biases.up_at);
    bias(w.down_bias, tensors_.biases.down, tensors_.biases.down_at);
    quantised_x_ = {};
    if (plan::pulls_fp8(setup_.problem, a.kind)) {
        quantised_x_ = bind_quantise_x(memory(), tensors_, a.inputs.x.shape[0]);
    }
}

void CudaEngine::publish_d_out(const PassArguments& a) {
    tensors_.d_y = publish_rows(a.d_out, setup_.window_map.d_y);
}

void CudaEngine::barrier_before() {
    publisher_->launch(stream_);
    check_cuda(kernels::launch_quantise_rows(quantised_x_, stream_), "quantising x");
    peers_->meet(stream_, "barrier before a pass");
}

PassMemory CudaEngine::memory() {
    return {setup_, local_, *peers_, faults_.record(), num_sms_, fp8_slots_.data()};
}

void CudaEngine::clear(Clears what) {
    const int64_t first = setup_.map.signals;
    const int64_t tickets = control_offset(setup_.map) + int64_t{sizeof(PassControl::tickets)};
    const int64_t end = what == Clears::Pass ? local_.bytes() : tickets;
    check_cuda(cudaMemsetAsync(local_.data() + first, 0, end - first, stream_), "clearing signals");
    const plan::Fp8SlotsMap slots = plan::fp8_slots_map(setup_.problem);
    if (slots.counter_bytes == 0) return;
    check_cuda(cudaMemsetAsync(fp8_slots_.data() + slots.counters, 0, slots.counter_bytes, stream_),
               "clearing counters of units");
}

plan::RouteTable CudaEngine::no_routes() const {
    // Every array of the table.
    std::array<int32_t*, sizeof(plan::RouteTable) / sizeof(int32_t*)> zeros;
    zeros.fill(no_routes_.at<int32_t>(0));
    return std::bit_cast<plan::RouteTable>(zeros);
}

void CudaEngine::launch_pass(const PassArguments& a) {
    clear(Clears::Pass);
    const bool fp8 = plan::is_fp8(setup_.problem);
    if (plan::is_backward(a.kind)) {
        return fp8 ? launch_fp8_backward(a) : launch_backward(a, a.schedule.table);
    }
    if (fp8) return launch_fp8_forward(a);
    launch_forward(a, a.schedule.table);
}

void CudaEngine::launch_forward(const PassArguments& a, const plan::RouteTable& table) {
    ForwardLaunch launch = bind_forward(memory(), a, tensors_);
    launch.params.pass.table = table;
    diagnostics_->apply(launch.params);
    check_cuda(
        kernels::launch_forward(launch.params, launch.routed, launch.shared, num_sms_, stream_),
        "the forward kernel");
    diagnostics_->count_rows(launch.params.pass, stream_);
}

void CudaEngine::launch_backward(const PassArguments& a, const plan::RouteTable& table) {
    BackwardLaunch launch = bind_backward(memory(), a, tensors_);
    launch.params.pass.table = table;
    diagnostics_->apply(launch.params);
    check_cuda(
        kernels::launch_backward(launch.params, launch.routed, launch.shared, num_sms_, stream_),
        "the backward kernel");
    diagnostics_->count_rows(launch.params.pass, stream_);
}

void CudaEngine::run_program(const PassArguments& a) {
    try {
        launch_pass(a);
    } catch (const std::exception& e) {
        setup_.group.abandon(e.what());
        throw;
    }
}

// A pass over a table without routes: its only tasks are the shared expert's.
void CudaEngine::run_shared_wgrad(const PassArguments& a) {
    publisher_->launch(stream_);
    clear(Clears::Pass);
    launch_backward(a, no_routes());
}

void CudaEngine::reduce_output(const PassArguments& a) {
    check_cuda(kernels::launch_reduce(bind_reduce(memory(), a), stream_), "the reduction");
}

void CudaEngine::reduce_input_grads(const PassArguments& a) {
    check_cuda(kernels::launch_reduce_grads(bind_reduce_grads(memory(), a), stream_),
               "the reduction of gradients");
}

// ---- Between calls ----------------------------------------------------------------------------
int64_t CudaEngine::bytes() const {
    return setup_.window_map.total + local_.bytes() + table_scratch_.bytes() + fp8_slots_.bytes();
}

void CudaEngine::set_stream(void* stream) {
    const DeviceScope current(device_);
    const cudaStream_t next = static_cast<cudaStream_t>(stream);
    if (next == stream_) return;
    // What is captured is ordered by whoever launches the graph.
    if (!is_capturing(next) && !is_capturing(stream_)) {
        check_cuda(cudaEventRecord(stream_changed_, stream_), "recording an event");
        check_cuda(cudaStreamWaitEvent(next, stream_changed_), "waiting for an event");
    }
    stream_ = next;
}

void CudaEngine::throw_if_broken() {
    faults_.throw_if_broken();
    peers_->throw_if_broken();
}

void CudaEngine::require_usable() {
    doubt_after_failure(stream_, faults_);
    throw_if_broken();
    if (!peers_->is_capturable() && is_capturing(stream_)) {
        throw ShapeError(
            "stream: expected one that is not captured, for the ranks are threads of "
            "this process, found one that is");
    }
}

void CudaEngine::synchronize() {
    const DeviceScope current(device_);
    wait();
    throw_if_broken();
    faults_.throw_table_report();
}

void CudaEngine::poison() {
    const DeviceScope current(device_);
    // All but the flags of the rank barrier, which peers may write meanwhile.
    check_cuda(cudaMemsetAsync(peers_->window(setup_.problem.rank), 0xff,
                               setup_.window_map.barrier_flags, stream_),
               "poisoning the window");
    check_cuda(cudaMemsetAsync(local_.data(), 0xff, local_.bytes(), stream_),
               "poisoning the workspace");
    check_cuda(cudaMemsetAsync(fp8_slots_.data(), 0xff, fp8_slots_.bytes(), stream_),
               "poisoning operands");
}

void CudaEngine::set_diagnostics(const Diagnostics& diagnostics) {
    const DeviceScope current(device_);
    diagnostics_->set(diagnostics);
}

LinkBytes CudaEngine::link_bytes() {
    const DeviceScope current(device_);
    wait();
    return diagnostics_->link_bytes(stream_);
}

PassControl CudaEngine::read_control() {
    wait();
    PassControl control;
    read_device(&control, local_.data() + control_offset(setup_.map), sizeof(control), stream_);
    return control;
}

std::vector<TracedTask> CudaEngine::trace() {
    const DeviceScope current(device_);
    return diagnostics_->trace(read_control().num_traced, stream_);
}

PassTimes CudaEngine::pass_times() {
    const DeviceScope current(device_);
    const kernels::PassTimes times = read_control().times;
    return {times.waited_ns, times.total_ns};
}

std::shared_ptr<Engine> make_cuda_engine(const Setup& setup) {
    return std::make_shared<CudaEngine>(setup);
}

}  // namespace mok::layer
