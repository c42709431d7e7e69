#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include "bench_case.h"
#include "layer_case.h"

// Times of a layer's forward in fp8_block beside the same layer's in bf16, in turn, one rank on one
// GPU, random data: medians of the whole call (schedule aside), with a context and without, and
// what the trace says of the tasks. Arguments: number of tokens (8192), iterations (20), names of
// shapes (all).
namespace {

using namespace mok;
using namespace mok_test;

struct Timed {
    Workspace workspace;
    Schedule schedule;
    std::optional<Fp8Weights> fp8;
    Weights weights;
    Inputs inputs;
    Tensor out;
    Context context;

    Timed(const cli::RandomCase& c, Precision precision, const Weights& on_device, const Inputs& in,
          const ConstTensor& ids, const Tensor& to)
        : workspace(one_gpu(), shape_of(c, precision), {}, c.num_tokens),
          schedule(workspace, ids),
          weights(on_device),
          inputs(in),
          out(to) {
        if (precision == Precision::BF16) return;
        quantize_weights(workspace, weights, fp8.emplace(workspace));
        weights.fp8 = &*fp8;
    }
    static LayerShape shape_of(const cli::RandomCase& c, Precision precision) {
        LayerShape shape = c.shape;
        shape.precision = precision;
        return shape;
    }
    void run(bool training) {
        if (training) {
            forward(workspace, schedule, weights, inputs, out, context);
        } else {
            forward(workspace, schedule, weights, inputs, out);
        }
    }
};

class Timer {
  public:
    Timer() {
        MOK_CUDA(cudaEventCreate(&begin_));
        MOK_CUDA(cudaEventCreate(&end_));
    }
    template <class Call>
    float ms(Call&& call) {
        MOK_CUDA(cudaEventRecord(begin_));
        call();
        MOK_CUDA(cudaEventRecord(end_));
        MOK_CUDA(cudaEventSynchronize(end_));
        float ms = 0.0f;
        MOK_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
        return ms;
    }

  private:
    cudaEvent_t begin_, end_;
};

void print_tasks(Timed& layer, bool training) {
    Diagnostics d;
    d.trace_capacity = 1 << 18;
    set_diagnostics(layer.workspace, d);
    layer.run(training);
    struct Sum {
        double tasks = 0, us = 0, epilogue = 0;
    };
    std::map<std::string, Sum> by_kind;
    std::map<int, std::vector<std::pair<uint64_t, uint64_t>>> by_sm;
    for (const TracedTask& t : trace(layer.workspace)) {
        Sum& s = by_kind[t.kind];
        s.tasks += 1;
        s.us += (t.end_ns - t.begin_ns) * 1e-3;
        if (t.multiplied_ns == 0) continue;
        s.epilogue += (t.end_ns - t.multiplied_ns) * 1e-3;
        by_sm[t.multiprocessor].push_back({t.begin_ns, t.multiplied_ns});
    }
    double gap = 0, gaps = 0;
    uint64_t first = ~uint64_t{0}, last = 0;
    for (auto& [sm, tasks] : by_sm) {
        std::ranges::sort(tasks);
        for (size_t i = 1; i < tasks.size(); ++i) {
            gap += static_cast<double>(static_cast<int64_t>(tasks[i].first - tasks[i - 1].second));
            gaps += 1;
        }
        first = std::min(first, tasks.front().first);
        last = std::max(last, tasks.back().second);
    }
    for (const auto& [kind, s] : by_kind) {
        if (s.epilogue == 0) continue;
        std::printf(
            "    %-8s %6.0f tasks, %6.2f us from begin to told, %5.2f from the last product\n",
            kind.c_str(), s.tasks, s.us / s.tasks, s.epilogue / s.tasks);
    }
    std::printf("    %.2f us from a last product to the next task's begin; %.1f us in all\n",
                gap * 1e-3 / std::max(gaps, 1.0), static_cast<double>(last - first) * 1e-3);
    set_diagnostics(layer.workspace, {});
}

void bench(const BenchShape& s, int64_t tokens, int iterations) {
    const cli::RandomCase c = bench_case(s, tokens, cli::Routing::Balanced);
    cli::DeviceTensors tensors(kGpu);
    const cli::GlobalInputs all = c.inputs();
    const Weights weights = tensors.input(all.weights);
    const Inputs inputs = tensors.input(Inputs{all.x, all.topk_weights, {}});
    const ConstTensor ids = tensors.input(all.topk_ids);
    std::vector<Bf16> bf16(tokens * s.hidden), fp8(bf16.size());
    const auto output = [&](std::vector<Bf16>& host) {
        return tensors.output(Tensor(host.data(), DType::BF16, {tokens, s.hidden}));
    };
    Timed a(c, Precision::BF16, weights, inputs, ids, output(bf16));
    Timed b(c, Precision::Fp8Block, weights, inputs, ids, output(fp8));
    Timer timer;
    const double flops = 6.0 * tokens * s.top_k * s.hidden * s.intermediate;
    for (const bool training : {false, true}) {
        std::vector<float> of_a, of_b;
        for (int i = 0; i < iterations + 3; ++i) {
            const float ms_a = timer.ms([&] { a.run(training); });
            const float ms_b = timer.ms([&] { b.run(training); });
            if (i < 3) continue;
            of_a.push_back(ms_a);
            of_b.push_back(ms_b);
        }
        std::printf("%-16s T %5ld %-9s bf16 %.3f ms %4.0f TFLOP/s, fp8_block %.3f ms %4.0f: %.2f\n",
                    s.name, long(tokens), training ? "training" : "inference", median(of_a),
                    flops / median(of_a) * 1e-9, median(of_b), flops / median(of_b) * 1e-9,
                    median(of_a) / median(of_b));
        print_tasks(a, training);
        print_tasks(b, training);
        std::fflush(stdout);
    }
    const float quantised = timer.ms([&] { quantize_weights(b.workspace, weights, *b.fp8); });
    tensors.fetch();
    double error = 0, norm = 0;
    for (size_t i = 0; i < bf16.size(); ++i) {
        const double want = to_f32(bf16[i]), d = to_f32(fp8[i]) - want;
        error += d * d;
        norm += want * want;
    }
    std::printf("    weights quantised in %.3f ms; distance of the outputs %.3f\n", quantised,
                std::sqrt(error / norm));
}

}  // namespace

int main(int argc, char** argv) {
    const int64_t tokens = argc > 1 ? std::atol(argv[1]) : 8192;
    const int iterations = argc > 2 ? std::atoi(argv[2]) : 20;
    for (const BenchShape& s : kSlices) {
        const auto is_named = [&s](const char* name) { return std::strcmp(name, s.name) == 0; };
        if (argc > 3 && std::none_of(argv + 3, argv + argc, is_named)) continue;
        bench(s, tokens, iterations);
    }
}
