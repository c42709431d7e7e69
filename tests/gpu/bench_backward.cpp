#include <algorithm>
#include <array>
#include <map>

#include "backward_case.h"
#include "bench_case.h"

// Times of the backward kernel on one GPU, random data, FP32 weight gradients overwritten: the
// whole backward (clearing signals, the pass, the sums), the pass alone, and its compute tasks
// alone. Medians. Arguments: names of shapes, none: all; b=ROWS, the minibatch.
namespace {

using namespace mok;
using mok_test::median;
using Shape = mok_test::BenchShape;

cli::RandomCase backward_case(const Shape& s, int64_t tokens) {
    cli::RandomCase c = mok_test::bench_case(s, tokens, cli::Routing::Balanced);
    mok_test::fill(c.grad_output, tokens * s.hidden, 1.0f, 6);
    return c;
}

// What the consumers of an SM do between two tasks, by the kind of the earlier one: from its last
// product to the beginning of the next, and of it after the earlier one was told: nothing to do.
void print_gaps(std::vector<kernels::TraceRecord> all, uint64_t zero) {
    std::erase_if(all,
                  [](const auto& r) { return plan::role_of(r.task.kind) == plan::Role::Comm; });
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
        return a.sm != b.sm ? a.sm < b.sm : a.begin_ns < b.begin_ns;
    });
    struct Gap {
        double count = 0, whole = 0, idle = 0;
    };
    std::map<plan::TaskKind, Gap> gaps;
    double first = 0, last = 0;
    for (size_t i = 0; i < all.size(); ++i) {
        const auto& r = all[i];
        if (i == 0 || all[i - 1].sm != r.sm) first += (r.begin_ns - zero) * 1e-3 / 132;
        if (i + 1 == all.size() || all[i + 1].sm != r.sm) {
            last += (r.end_ns - zero) * 1e-3 / 132;
            continue;
        }
        Gap& gap = gaps[r.task.kind];
        const double begin = all[i + 1].begin_ns * 1e-3, end = r.end_ns * 1e-3;
        gap.count += 1;
        gap.whole += begin - r.multiplied_ns * 1e-3;
        gap.idle += std::max(0.0, begin - end);
    }
    for (const auto& [kind, gap] : gaps) {
        std::printf(
            "    after %-11s %5.2f us to the next task, idle %5.2f; an SM %6.1f, %6.1f us\n",
            plan::task_name(kind), gap.whole / gap.count, gap.idle / gap.count, gap.whole / 132,
            gap.idle / 132);
    }
    std::printf("    SMs begin at %.1f us and end at %.1f us on average\n", first, last);
}

// Tasks, time a task, its part behind the last product, and the span, by kind.
void print_trace(mok_test::BackwardCase& backward) {
    constexpr uint32_t kCapacity = 1 << 18;
    kernels::BackwardParams& p = backward.ranks[0].params;
    mok_test::DeviceMemory records(kCapacity * sizeof(kernels::TraceRecord)), num(256);
    MOK_CUDA(cudaMemset(num.at<char>(), 0, 4));
    p.traced = true;
    p.trace = records.at<kernels::TraceRecord>();
    p.num_traced = num.at<uint32_t>();
    p.trace_capacity = kCapacity;
    backward.run_backward(nullptr);
    MOK_CUDA(cudaDeviceSynchronize());
    p.traced = false;
    uint32_t count = 0;
    MOK_CUDA(cudaMemcpy(&count, num.at<char>(), 4, cudaMemcpyDeviceToHost));
    std::vector<kernels::TraceRecord> all(std::min(count, kCapacity));
    MOK_CUDA(cudaMemcpy(all.data(), records.at<char>(), all.size() * sizeof(all[0]),
                        cudaMemcpyDeviceToHost));
    struct Kind {
        double tasks = 0, busy = 0, epilogue = 0, begin = 1e30, end = 0;
    };
    std::map<plan::TaskKind, Kind> kinds;
    uint64_t zero = ~uint64_t{0};
    for (const auto& r : all) zero = std::min(zero, r.begin_ns);
    for (const auto& r : all) {
        Kind& k = kinds[r.task.kind];
        const double begin = (r.begin_ns - zero) * 1e-3, end = (r.end_ns - zero) * 1e-3;
        k.tasks += 1;
        k.busy += end - begin;
        if (r.multiplied_ns != 0) k.epilogue += (r.end_ns - r.multiplied_ns) * 1e-3;
        k.begin = std::min(k.begin, begin);
        k.end = std::max(k.end, end);
    }
    for (const auto& [kind, k] : kinds) {
        std::printf(
            "    %-11s %6.0f tasks, %6.1f us each, %5.1f behind the products, busy %7.1f "
            "us an SM, from %7.1f to %7.1f us\n",
            plan::task_name(kind), k.tasks, k.busy / k.tasks, k.epilogue / k.tasks, k.busy / 132,
            k.begin, k.end);
    }
    print_gaps(all, zero);
}

void bench(const Shape& s, int64_t tokens, int iterations, int64_t minibatch_rows) {
    const cli::RandomCase c = backward_case(s, tokens);
    mok_test::BackwardOptions options;
    options.device.tuning.minibatch_rows = minibatch_rows;
    mok_test::BackwardCase backward(c, options);
    backward.run();
    kernels::BackwardParams& p = backward.ranks[0].params;
    const mok_test::BackwardRank& b = backward.ranks[0];
    const char* control = backward.device.ranks[0].control.at<char>();
    cudaEvent_t e[4];
    for (auto& event : e) MOK_CUDA(cudaEventCreate(&event));
    std::vector<float> whole, pass, products;
    for (int i = 0; i < iterations + 3; ++i) {
        MOK_CUDA(cudaEventRecord(e[0]));
        MOK_CUDA(cudaMemsetAsync(p.signals, 0, plan::num_signals(p.pass.problem) * 4));
        MOK_CUDA(cudaMemsetAsync(const_cast<char*>(control), 0, 256));
        MOK_CUDA(cudaEventRecord(e[1]));
        MOK_CUDA(kernels::launch_backward(p, b.routed, b.shared, 132, nullptr));
        MOK_CUDA(cudaEventRecord(e[2]));
        MOK_CUDA(kernels::launch_reduce_grads(b.reduce, nullptr));
        MOK_CUDA(cudaEventRecord(e[3]));
        MOK_CUDA(cudaDeviceSynchronize());
        float ms;
        MOK_CUDA(cudaEventElapsedTime(&ms, e[0], e[3]));
        if (i >= 3) whole.push_back(ms);
        MOK_CUDA(cudaEventElapsedTime(&ms, e[1], e[2]));
        if (i >= 3) pass.push_back(ms);
        // The compute role alone: every signal counts as arrived and the exchange has nothing to
        // claim.
        MOK_CUDA(cudaMemsetAsync(p.signals, 0x3f, plan::num_signals(p.pass.problem) * 4));
        MOK_CUDA(cudaMemsetAsync(const_cast<char*>(control), 0, 256));
        MOK_CUDA(cudaMemsetAsync(const_cast<char*>(control) + 4, 0x3f, 4));
        MOK_CUDA(cudaEventRecord(e[0]));
        MOK_CUDA(kernels::launch_backward(p, b.routed, b.shared, 132, nullptr));
        MOK_CUDA(cudaEventRecord(e[1]));
        MOK_CUDA(cudaDeviceSynchronize());
        MOK_CUDA(cudaEventElapsedTime(&ms, e[0], e[1]));
        if (i >= 3) products.push_back(ms);
    }
    const double flops = 12.0 * tokens * s.top_k * s.hidden * s.intermediate;
    const auto rate = [&](const std::vector<float>& ms) { return flops / median(ms) * 1e-9; };
    std::printf(
        "%-16s T %5ld: whole %.3f ms %.0f TFLOP/s; pass %.3f ms %.0f TFLOP/s; products "
        "alone %.3f ms %.0f TFLOP/s %s\n",
        s.name, long(tokens), median(whole), rate(whole), median(pass), rate(pass),
        median(products), rate(products), backward.device.fault().c_str());
    print_trace(backward);
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    int64_t minibatch_rows = 0;
    std::vector<std::string> names;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (argument.starts_with("b=")) {
            minibatch_rows = std::stoll(argument.substr(2));
        } else {
            names.push_back(argument);
        }
    }
    for (const Shape& s : mok_test::kSlices) {
        const bool asked = std::find(names.begin(), names.end(), s.name) != names.end();
        if (names.empty() || asked) bench(s, 2048, 12, minibatch_rows);
    }
}
