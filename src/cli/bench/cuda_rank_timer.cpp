#include "cli/bench/cuda_rank_timer.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/group_state.h"
#include "layer/cuda_memory.h"
#include "layer/device_copy.h"

namespace mok::cli {
namespace {

using layer::check_cuda;

constexpr int64_t kTraceCapacity = 1 << 20;

// Seeds of the tensors.
enum Seed : uint64_t { kX = 1, kGate, kUp, kDown, kDOut };

}  // namespace

CudaRankTimer::CudaRankTimer(const BenchCase& c, const Group& group, const CudaNormals& normals)
    : group_(group), workspace_(group, c.shape, c.tuning, c.tokens_per_rank) {
    const layer::DeviceScope scope(group.device().index);
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    check_cuda(cudaEventCreate(&begin_), "an event");
    check_cuda(cudaEventCreate(&end_), "an event");
    workspace_.set_stream(stream_);
    if (c.copies_beside) copy_.emplace(group.device());

    const int64_t h = c.shape.hidden, i = c.shape.intermediate, k = c.shape.top_k;
    const int64_t t = c.tokens_per_rank, e = workspace_.num_local_experts();
    const int64_t token = group.rank() * t, expert = workspace_.first_expert();
    const CudaNormals::Part tokens{c.seed * 100 + kX, token * h, t * h};
    const auto weights = [&](Seed seed) {
        const CudaNormals::Part part{c.seed * 100 + seed, expert * i * h, e * i * h};
        return normal(normals, part, kWeightDeviation);
    };
    x_ = normal(normals, tokens, kInputDeviation);
    gate_ = weights(kGate);
    up_ = weights(kUp);
    down_ = weights(kDown);
    out_ = allocate(t * h * 2);
    ids_ = allocate(t * k * 4);
    topk_weights_ = allocate(t * k * 4);
    layer::copy_to_cuda(group.device(), ids_.data(), c.topk_ids.data() + token * k, t * k * 4);
    layer::copy_to_cuda(group.device(), topk_weights_.data(), c.topk_weights.data() + token * k,
                        t * k * 4);

    ids_view_ = ConstTensor(ids_.data(), DType::I32, {t, k});
    inputs_.x = ConstTensor(x_.data(), DType::BF16, {t, h});
    inputs_.topk_weights = ConstTensor(topk_weights_.data(), DType::F32, {t, k});
    weights_.gate = ConstTensor(gate_.data(), DType::BF16, {e, i, h});
    weights_.up = ConstTensor(up_.data(), DType::BF16, {e, i, h});
    weights_.down = ConstTensor(down_.data(), DType::BF16, {e, h, i});
    if (c.shape.precision != Precision::BF16) {
        quantize_weights(workspace_, weights_, fp8_weights_.emplace(workspace_));
        weights_.fp8 = &*fp8_weights_;
    }
    out_view_ = Tensor(out_.data(), DType::BF16, {t, h});
    if (!c.backward) return;
    d_out_ = normal(normals, {c.seed * 100 + kDOut, token * h, t * h}, kInputDeviation);
    d_out_view_ = ConstTensor(d_out_.data(), DType::BF16, {t, h});
    make_gradients(c);
}

CudaRankTimer::~CudaRankTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    // The workspace may still order its calls by this stream.
    schedule_.reset();
    workspace_.set_stream(nullptr);
    cudaStreamDestroy(stream_);
}

CudaRankTimer::DeviceTensor CudaRankTimer::allocate(int64_t bytes) const {
    return {layer::cuda_memory(group_.device(), bytes), bytes};
}

CudaRankTimer::DeviceTensor CudaRankTimer::normal(const CudaNormals& normals,
                                                  const CudaNormals::Part& part,
                                                  double deviation) const {
    DeviceTensor tensor = allocate(part.elements * 2);
    normals.fill(tensor.data(), part, deviation);
    return tensor;
}

void CudaRankTimer::make_gradients(const BenchCase& c) {
    const int64_t h = c.shape.hidden, i = c.shape.intermediate, k = c.shape.top_k;
    const int64_t t = c.tokens_per_rank, e = workspace_.num_local_experts();
    d_x_ = allocate(t * h * 2);
    d_topk_weights_ = allocate(t * k * 4);
    for (DeviceTensor* grad : {&d_gate_, &d_up_, &d_down_}) *grad = allocate(e * i * h * 4);
    input_grads_.x = Tensor(d_x_.data(), DType::BF16, {t, h});
    input_grads_.topk_weights = Tensor(d_topk_weights_.data(), DType::F32, {t, k});
    weight_grads_.gate = Tensor(d_gate_.data(), DType::F32, {e, i, h});
    weight_grads_.up = Tensor(d_up_.data(), DType::F32, {e, i, h});
    weight_grads_.down = Tensor(d_down_.data(), DType::F32, {e, h, i});
}

void CudaRankTimer::make_schedule() {
    schedule_.reset();  // its memory serves the next one
    schedule_.emplace(workspace_, ids_view_);
}

// A forward begins with the ids; a backward follows the forward of this schedule and context.
void CudaRankTimer::enqueue(BenchPass pass) {
    if (pass == BenchPass::Backward) {
        backward(workspace_, *schedule_, weights_, inputs_, d_out_view_, context_, input_grads_,
                 weight_grads_);
        return;
    }
    make_schedule();
    if (pass == BenchPass::Forward) {
        forward(workspace_, *schedule_, weights_, inputs_, out_view_, context_);
    } else {
        forward(workspace_, *schedule_, weights_, inputs_, out_view_);
    }
}

double CudaRankTimer::timed_ms(const std::function<void()>& before,
                               const std::function<void()>& work, CopyBeside* copy) {
    const layer::DeviceScope scope(group_.device().index);
    synchronize(workspace_);
    group_.state().barrier(group_.rank(), "barrier before a timed pass");
    before();
    check_cuda(cudaEventRecord(begin_, stream_), "an event");
    work();
    check_cuda(cudaEventRecord(end_, stream_), "an event");
    if (copy != nullptr) copy->start(begin_);
    synchronize(workspace_);
    check_cuda(cudaEventSynchronize(end_), "a timed pass");
    if (copy != nullptr) copy->finish(begin_);
    float ms = 0.0f;
    check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "the time of a pass");
    return ms;
}

double CudaRankTimer::run_ms(BenchPass pass) {
    return timed_ms(
        [&] {
            if (pass == BenchPass::Backward) enqueue(BenchPass::Forward);
        },
        [&] { enqueue(pass); }, copy_ ? &*copy_ : nullptr);
}

double CudaRankTimer::table_ms() {
    return timed_ms([] {}, [&] { make_schedule(); });
}

int64_t CudaRankTimer::launches(BenchPass pass) {
    const layer::DeviceScope scope(group_.device().index);
    if (pass == BenchPass::Backward) enqueue(BenchPass::Forward);
    synchronize(workspace_);
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "a capture");
    try {
        enqueue(pass);
    } catch (...) {
        cudaStreamEndCapture(stream_, &graph);
        if (graph != nullptr) cudaGraphDestroy(graph);
        throw;
    }
    check_cuda(cudaStreamEndCapture(stream_, &graph), "a capture");
    size_t num_nodes = 0;
    check_cuda(cudaGraphGetNodes(graph, nullptr, &num_nodes), "a graph's nodes");
    std::vector<cudaGraphNode_t> nodes(num_nodes);
    check_cuda(cudaGraphGetNodes(graph, nodes.data(), &num_nodes), "a graph's nodes");
    const auto kernels = std::count_if(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
        cudaGraphNodeType type{};
        check_cuda(cudaGraphNodeGetType(node, &type), "a graph's node");
        return type == cudaGraphNodeTypeKernel;
    });
    check_cuda(cudaGraphDestroy(graph), "a graph");
    // What was captured has not run: the schedule and context hold nothing.
    make_schedule();
    synchronize(workspace_);
    return kernels;
}

int64_t CudaRankTimer::link_bytes(BenchPass pass) {
    Diagnostics counting;
    counting.counts_link_bytes = true;
    const auto moved = [this] {
        const LinkBytes links = mok::link_bytes(workspace_);
        int64_t bytes = 0;
        for (int r = 0; r < group_.size(); ++r) {
            if (r != group_.rank()) bytes += links.pulled[r] + links.pushed[r];
        }
        return bytes;
    };
    if (pass == BenchPass::Backward) enqueue(BenchPass::Forward);
    synchronize(workspace_);
    set_diagnostics(workspace_, counting);
    const int64_t before = moved();
    enqueue(pass);
    synchronize(workspace_);
    const int64_t bytes = moved() - before;
    set_diagnostics(workspace_, Diagnostics());
    return bytes;
}

std::vector<TracedTask> CudaRankTimer::trace(BenchPass pass) {
    if (pass == BenchPass::Backward) enqueue(BenchPass::Forward);
    synchronize(workspace_);
    Diagnostics tracing;
    tracing.trace_capacity = kTraceCapacity;
    set_diagnostics(workspace_, tracing);
    enqueue(pass);
    std::vector<TracedTask> tasks = mok::trace(workspace_);
    set_diagnostics(workspace_, Diagnostics());
    if (std::ssize(tasks) >= kTraceCapacity) {
        throw Error(fmt::format("trace: expected fewer than {} tasks in a pass, found more",
                                kTraceCapacity));
    }
    return tasks;
}

std::vector<CudaRankTimer::Result> CudaRankTimer::results(BenchPass pass) const {
    const int64_t tokens = inputs_.x.shape[0], experts = workspace_.num_local_experts();
    if (pass != BenchPass::Backward) return {{&out_, tokens}};
    return {{&d_x_, tokens},
            {&d_topk_weights_, tokens},
            {&d_gate_, experts},
            {&d_up_, experts},
            {&d_down_, experts}};
}

std::vector<io::Sha256Digest> CudaRankTimer::digests(BenchPass pass, int result) const {
    const Result r = results(pass).at(result);
    std::vector<io::Sha256Digest> all;
    if (r.units == 0) return all;
    std::vector<std::byte> unit(r.tensor->bytes / r.units);
    io::Sha256 digest;
    for (int64_t u = 0; u < r.units; ++u) {
        const std::byte* from = r.tensor->memory.data() + u * std::ssize(unit);
        layer::copy_from_cuda(group_.device(), unit.data(), from, std::ssize(unit));
        digest.update(unit);
        all.push_back(digest.finish());
    }
    return all;
}

}  // namespace mok::cli
