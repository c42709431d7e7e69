#include <atomic>
#include <memory>
#include <thread>

#include "layer_case.h"
#include "openmok/diagnostics.h"

// The calls of the public API on a GPU: streams, graphs, several layers on one workspace, what a
// bad id and a lost signal do, and what can be seen of a pass. A stand-alone program: prints what
// failed and ends with 1 then.
namespace {

using namespace mok;
using namespace mok_test;
using cli::RandomCase;

// ---- Streams and graphs -----------------------------------------------------------------------
void check_streams() {
    const RandomCase a = cli::random_case(rich_case(700, 1)),
                     b = cli::random_case(rich_case(200, 2));
    Workspace w(one_gpu(), a.shape, {}, 700);
    OnGpu first(a), second(b);
    const Stream one, two;
    // Two layers in turns, with all schedules made first, and the stream changed between calls.
    w.set_stream(one);
    const Schedule of_a(w, first.ids);
    w.set_stream(two);
    const Schedule of_b(w, second.ids);
    std::vector<Context> contexts(6);
    for (int turn = 0; turn < 3; ++turn) {
        w.set_stream(turn % 2 == 0 ? one : two);
        forward(w, of_a, first.weights, first.inputs, first.out, contexts[2 * turn]);
        w.set_stream(two);
        forward(w, of_b, second.weights, second.inputs, second.out, contexts[2 * turn + 1]);
    }
    synchronize(w);
    same_bits(first.output(), output_of(a, on_gpu(1)), "two layers on one workspace, the first");
    same_bits(second.output(), output_of(b, on_gpu(1)), "two layers on one workspace, the second");
    report(std::ranges::equal(of_a.tokens_per_expert(),
                              cli::run_global(a.shape, a.inputs(), {}).tokens_per_expert),
           "tokens per expert, read later");
    std::vector<int32_t> rows(a.shape.num_experts);
    const ConstTensor on_device = of_a.tokens_per_expert_device();
    MOK_CUDA(cudaMemcpy2D(rows.data(), 4, on_device.data, on_device.stride[0] * 4, 4, rows.size(),
                          cudaMemcpyDeviceToHost));
    report(std::ranges::equal(rows, of_a.tokens_per_expert()), "tokens per expert on the device");
}

void check_freed_inputs() {
    const RandomCase c = cli::random_case(rich_case(600));
    Workspace w(one_gpu(), c.shape, {}, 600);
    OnGpu t(c);
    const Stream stream;
    w.set_stream(stream);
    const size_t bytes = c.x.size() * 2;
    void *x = nullptr, *other = nullptr;
    MOK_CUDA(cudaMallocAsync(&x, bytes, stream));
    MOK_CUDA(cudaMemcpyAsync(x, t.inputs.x.data, bytes, cudaMemcpyDeviceToDevice, stream));
    t.inputs.x.data = x;
    run_once(w, t);
    MOK_CUDA(cudaFreeAsync(x, stream));
    MOK_CUDA(cudaMallocAsync(&other, bytes, stream));
    MOK_CUDA(cudaMemsetAsync(other, 0xff, bytes, stream));
    synchronize(w);
    same_bits(t.output(), output_of(c, on_gpu(1)), "x freed behind the call");
    MOK_CUDA(cudaFreeAsync(other, stream));
}

void check_graphs() {
    const RandomCase large = cli::random_case(rich_case(700, 1)),
                     other = cli::random_case(rich_case(700, 9)),
                     small = cli::random_case(rich_case(90, 2));
    Workspace w(one_gpu(), large.shape, {}, 700);
    OnGpu a(large), b(small);
    const Stream stream;
    w.set_stream(stream);
    run_once(w, a);  // the blocks that the captured calls will use
    synchronize(w);
    const Graph of_a(stream, [&] { run_once(w, a); }), of_b(stream, [&] { run_once(w, b); });
    const int kernels = of_a.count(cudaGraphNodeTypeKernel);
    std::printf("a forward: %d kernels, %d memsets, %d copies\n", kernels,
                of_a.count(cudaGraphNodeTypeMemset), of_a.count(cudaGraphNodeTypeMemcpy));
    report(kernels <= 4, "at most 4 kernels a forward");
    // The routing of another case with the same tokens.
    RandomCase changed = large;
    changed.topk_ids = other.topk_ids;
    changed.topk_weights = other.topk_weights;
    const std::vector<Bf16> want_large = output_of(large, on_gpu(1)),
                            want_small = output_of(small, on_gpu(1)),
                            want_changed = output_of(changed, on_gpu(1));
    void* const ids = const_cast<void*>(a.ids.data);
    void* const weights = const_cast<void*>(a.inputs.topk_weights.data);
    for (int round = 0; round < 6; ++round) {
        const RandomCase& now = round % 2 == 0 ? large : changed;
        MOK_CUDA(cudaMemcpyAsync(ids, now.topk_ids.data(), now.topk_ids.size() * 4,
                                 cudaMemcpyHostToDevice, stream));
        MOK_CUDA(cudaMemcpyAsync(weights, now.topk_weights.data(), now.topk_weights.size() * 4,
                                 cudaMemcpyHostToDevice, stream));
        if (round % 3 == 0) of_b.replay();
        of_a.replay();
        of_b.replay();
        synchronize(w);
        same_bits(a.output(), round % 2 == 0 ? want_large : want_changed,
                  "graph of 700 tokens, round " + std::to_string(round));
        same_bits(b.output(), want_small, "graph of 90 tokens, round " + std::to_string(round));
    }
    run_once(w, b);
    synchronize(w);
    same_bits(b.output(), want_small, "a call after graphs");

    // An id that becomes bad between replays.
    int32_t bad = 77;
    MOK_CUDA(cudaMemcpy(static_cast<int32_t*>(ids) + 5 * large.shape.top_k + 2, &bad, 4,
                        cudaMemcpyHostToDevice));
    of_a.replay();
    expect_throw<ShapeError>(
        "topk_ids of rank 0, token 5, choice 2: expected -1 or an expert "
        "below 8, found 77",
        "a bad id in a replay", [&] { synchronize(w); });
    MOK_CUDA(
        cudaMemcpy(ids, large.topk_ids.data(), large.topk_ids.size() * 4, cudaMemcpyHostToDevice));
    MOK_CUDA(cudaMemcpy(weights, large.topk_weights.data(), large.topk_weights.size() * 4,
                        cudaMemcpyHostToDevice));
    of_a.replay();
    synchronize(w);
    same_bits(a.output(), want_large, "the replay after a bad id");
}

// A training step in one graph, and gradients that are added to the old ones.
void check_steps() {
    const RandomCase c = cli::random_case(rich_case(500, 4));
    const cli::GlobalResult want = cli::run_global(c.shape, c.inputs(), on_gpu(1));
    Workspace w(one_gpu(), c.shape, {}, 500);
    OnGpu t(c);
    const Stream stream;
    w.set_stream(stream);
    run_step(w, t);
    synchronize(w);
    t.expect_gradients(want, "a step");
    const Graph step(stream, [&] { run_step(w, t); });
    std::printf("a step: %d kernels, %d memsets, %d copies\n", step.count(cudaGraphNodeTypeKernel),
                step.count(cudaGraphNodeTypeMemset), step.count(cudaGraphNodeTypeMemcpy));
    for (int round = 0; round < 3; ++round) {
        poison(w);
        MOK_CUDA(cudaMemsetAsync(t.input_grads.x.data, 0xff, want.d_x.size() * 2, stream));
        step.replay();
        synchronize(w);
        same_bits(t.output(), want.output, "a step in a graph: output");
        t.expect_gradients(want, "a step in a graph");
    }
    t.weight_grads.mode = GradMode::Accumulate;
    run_step(w, t);
    synchronize(w);
    cli::GlobalResult twice = want;
    for (float& v : twice.d_down) v += v;
    t.expect_gradients(twice, "gradients added to the same");
}

// ---- What goes wrong --------------------------------------------------------------------------
void check_bad_ids() {
    RandomCase c = cli::random_case(rich_case(300));
    const std::vector<Bf16> want = output_of(c, on_gpu(1));
    for (const int ranks : {1, 3}) {
        RandomCase wrong = c;
        wrong.topk_ids[250 * c.shape.top_k + 1] = -2;
        const int home = ranks == 1 ? 0 : 2;
        const std::string part = "topk_ids of rank " + std::to_string(home) + ", token " +
                                 std::to_string(ranks == 1 ? 250 : 50) +
                                 ", choice 1: expected -1 or an expert below 8, found -2";
        expect_throw<ShapeError>(part, "a bad id", [&] { output_of(wrong, on_gpu(ranks)); });
    }
    Workspace w(one_gpu(), c.shape, {}, 300);
    OnGpu t(c);
    int32_t bad = 1 << 30;
    int32_t* const at = static_cast<int32_t*>(const_cast<void*>(t.ids.data)) + 7;
    MOK_CUDA(cudaMemcpy(at, &bad, 4, cudaMemcpyHostToDevice));
    run_once(w, t);
    expect_throw<ShapeError>("found 1073741824", "a bad id, eager", [&] { synchronize(w); });
    MOK_CUDA(cudaMemcpy(at, &c.topk_ids[7], 4, cudaMemcpyHostToDevice));
    run_once(w, t);
    synchronize(w);
    same_bits(t.output(), want, "the call after a bad id");
}

void check_faults() {
    const RandomCase c = cli::random_case(rich_case(600));
    for (const int64_t task : {0, 7}) {
        GroupOptions options;
        options.timeout = std::chrono::duration<double>(0.05);
        Workspace w(one_gpu(options), c.shape, {}, 600);
        Diagnostics d;
        d.lose_arrivals_of = task;
        set_diagnostics(w, d);
        OnGpu t(c);
        run_once(w, t);
        expect_throw<TimeoutError>(" waited 0.1 s for ", "lost arrivals", [&] { synchronize(w); });
        expect_throw<TimeoutError>("the group is broken", "a call after a fault",
                                   [&] { run_once(w, t); });
    }
    MOK_CUDA(cudaDeviceSynchronize());
    same_bits(output_of(c, on_gpu(2)), output_of(c, on_gpu(1)), "a new group after a fault");
}

// A kernel that does not end is played by a function of the host in its place in the stream.
class Blockade {
  public:
    explicit Blockade(cudaStream_t stream) {
        const auto wait = [](void* self) {
            while (!static_cast<Blockade*>(self)->is_lifted_) std::this_thread::yield();
        };
        MOK_CUDA(cudaLaunchHostFunc(stream, wait, this));
    }
    ~Blockade() { is_lifted_ = true; }
    Blockade(const Blockade&) = delete;
    Blockade& operator=(const Blockade&) = delete;
    void lift() { is_lifted_ = true; }

  private:
    std::atomic<bool> is_lifted_ = false;
};

// A workspace whose first pass has failed and whose stream does not end. `call` is what its owner
// does then; afterwards the workspace is gone.
template <class Call>
void with_unended_stream(const RandomCase& c, Call&& call) {
    GroupOptions options;
    options.timeout = std::chrono::duration<double>(0.05);
    OnGpu t(c);
    const Stream stream;
    const auto start = std::chrono::steady_clock::now();
    auto workspace = std::make_unique<Workspace>(one_gpu(options), c.shape, Tuning(), int64_t{600});
    workspace->set_stream(stream);
    Diagnostics d;
    d.lose_arrivals_of = 0;
    set_diagnostics(*workspace, d);
    run_once(*workspace, t);
    Blockade blockade(stream);
    call(*workspace, t);
    workspace.reset();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    report(taken.count() > 10.0 && taken.count() < 12.0, "time until a kernel is given up");
    blockade.lift();
    MOK_CUDA(cudaStreamSynchronize(stream));
}

void check_unended_kernels() {
    const RandomCase c = cli::random_case(rich_case(600));
    const std::vector<Bf16> want = output_of(c, on_gpu(1));
    with_unended_stream(c, [&](Workspace& w, OnGpu& t) {
        const char* const sentence = ", and its kernel did not end in the 10.0 s after that";
        expect_throw<TimeoutError>(sentence, "a kernel that does not end", [&] { synchronize(w); });
        expect_throw<TimeoutError>(sentence, "a call after that", [&] { run_once(w, t); });
        expect_throw<Error>("a kernel of this process has not ended", "a workspace after that",
                            [&] { Workspace(one_gpu(), c.shape, {}, 600); });
    });
    same_bits(output_of(c, on_gpu(1)), want, "a workspace after the kernel has ended");
    with_unended_stream(c, [&](Workspace& w, OnGpu& t) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        expect_throw<TimeoutError>("the group is broken", "a call instead of a wait",
                                   [&] { run_once(w, t); });
    });
    same_bits(output_of(c, on_gpu(1)), want, "another workspace after that");
}

// ---- What can be seen -------------------------------------------------------------------------
void check_diagnostics() {
    const RandomCase c = cli::random_case(shape_case(1024, 512, 16, 4, 2048));
    Workspace w(one_gpu(), c.shape, {}, 2048);
    OnGpu t(c);
    Diagnostics d;
    d.trace_capacity = 1 << 16;
    set_diagnostics(w, d);
    run_once(w, t);
    int gate_ups = 0, ordered = 0;
    const std::vector<TracedTask> tasks = trace(w);
    for (const TracedTask& task : tasks) {
        gate_ups += task.kind == "GateUp";
        ordered += task.begin_ns <= task.end_ns;
    }
    int64_t tiles = 0;
    for (const int32_t rows : cli::run_global(c.shape, c.inputs(), {}).tokens_per_expert) {
        tiles += (rows + 127) / 128;
    }
    report(gate_ups == tiles * 4 && ordered == std::ssize(tasks), "trace");
    const PassTimes times = pass_times(w);
    report(times.total_ns > 0 && times.waited_ns < times.total_ns, "pass times");
    std::printf("2048 tokens: schedulers waited %.1f of %.1f us a multiprocessor\n",
                times.waited_ns / 132e3, times.total_ns / 132e3);
}

// The cost of a call beside its kernels.
void time_calls() {
    const RandomCase c = cli::random_case(shape_case(2048, 1024, 8, 4, 4096));
    Workspace w(one_gpu(), c.shape, {}, 4096);
    OnGpu t(c);
    const Stream stream;
    w.set_stream(stream);
    for (int i = 0; i < 3; ++i) run_once(w, t);
    synchronize(w);
    const auto time = [&](int repeats, auto&& call) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < repeats; ++i) call();
        const auto enqueued = std::chrono::steady_clock::now();
        MOK_CUDA(cudaStreamSynchronize(stream));
        const auto done = std::chrono::steady_clock::now();
        const auto us = [&](auto d) {
            return std::chrono::duration<double, std::micro>(d).count();
        };
        std::printf(" %.1f us a call (%.1f us to enqueue)", us(done - start) / repeats,
                    us(enqueued - start) / repeats);
    };
    std::printf("4096 tokens, H 2048, I 1024, 8 experts, top-4: calls");
    time(50, [&] { run_once(w, t); });
    std::printf(", each synchronised");
    time(50, [&] {
        run_once(w, t);
        synchronize(w);
    });
    std::printf(", each waited for by the driver");
    time(50, [&] {
        run_once(w, t);
        MOK_CUDA(cudaStreamSynchronize(stream));
    });
    const Graph graph(stream, [&] { run_once(w, t); });
    std::printf(", graph");
    time(50, [&] { graph.replay(); });
    run_step(w, t);
    const Graph step(stream, [&] { run_step(w, t); });
    std::printf(", forward and backward in a graph");
    time(20, [&] { step.replay(); });
    std::printf("\n");
}

}  // namespace

int main() {
    return run_gpu_checks("test_layer_calls", {{"streams", check_streams},
                                               {"freed inputs", check_freed_inputs},
                                               {"graphs", check_graphs},
                                               {"steps", check_steps},
                                               {"bad ids", check_bad_ids},
                                               {"faults", check_faults},
                                               {"unended kernels", check_unended_kernels},
                                               {"diagnostics", check_diagnostics},
                                               {"times", time_calls}});
}
