#include <algorithm>
#include <cstring>
#include <map>

#include "bench_case.h"
#include "device_case.h"

// Times of the forward kernel on one GPU, random data: the whole forward (clearing signals, the
// pass, the sum), and the pass and the sum alone. Medians of alternating runs. Arguments: names of
// shapes.
namespace {

using namespace mok;
using mok_test::bench_case;
using mok_test::median;
using Shape = mok_test::BenchShape;

void trace_summary(mok_test::DeviceCase& device, FILE* log) {
    constexpr uint32_t kCapacity = 1 << 18;
    mok_test::VirtualRank& v = device.ranks[0];
    mok_test::DeviceMemory records(kCapacity * sizeof(kernels::TraceRecord)), num(256);
    MOK_CUDA(cudaMemset(num.at<char>(), 0, 4));
    v.params.traced = true;
    v.params.trace = records.at<kernels::TraceRecord>();
    v.params.num_traced = num.at<uint32_t>();
    v.params.trace_capacity = kCapacity;
    device.run(nullptr);
    MOK_CUDA(cudaDeviceSynchronize());
    v.params.traced = false;
    uint32_t count = 0;
    MOK_CUDA(cudaMemcpy(&count, num.at<char>(), 4, cudaMemcpyDeviceToHost));
    std::vector<kernels::TraceRecord> all(std::min(count, kCapacity));
    MOK_CUDA(cudaMemcpy(all.data(), records.at<char>(), all.size() * sizeof(all[0]),
                        cudaMemcpyDeviceToHost));
    std::map<std::string, std::array<double, 4>> by_kind;  // tasks, busy us, first begin, last end
    std::map<std::string, double> epilogue;
    uint64_t zero = ~uint64_t{0};
    for (const auto& r : all) zero = std::min(zero, r.begin_ns);
    for (const auto& r : all) {
        auto& k = by_kind[plan::task_name(r.task.kind)];
        const double b = (r.begin_ns - zero) * 1e-3, e = (r.end_ns - zero) * 1e-3;
        if (k[0] == 0) k = {0, 0, b, e};
        if (r.multiplied_ns != 0)
            epilogue[plan::task_name(r.task.kind)] += (r.end_ns - r.multiplied_ns) * 1e-3;
        k = {k[0] + 1, k[1] + e - b, std::min(k[2], b), std::max(k[3], e)};
    }
    for (const auto& [name, us] : epilogue) {
        std::fprintf(log, "    %-10s %.2f us from products to told, tasks,\n", name.c_str(),
                     us / by_kind[name][0]);
    }
    for (const auto& [name, k] : by_kind) {
        std::fprintf(
            log,
            "    %-10s %6.0f tasks, %6.1f us each, busy %8.1f us an SM, from %7.1f to %7.1f us\n",
            name.c_str(), k[0], k[1] / k[0], k[1] / 132, k[2], k[3]);
    }
    for (const auto& r : all) {
        std::fprintf(log, "T %s %d %d %d %llu %llu %llu\n", plan::task_name(r.task.kind),
                     r.task.tile, r.task.part, r.sm, (unsigned long long)(r.begin_ns - zero),
                     (unsigned long long)(r.end_ns - zero),
                     (unsigned long long)(r.multiplied_ns == 0 ? 0 : r.multiplied_ns - zero));
    }
}

// The compute role alone: every signal counts as arrived and the exchange has nothing to claim.
float products_alone(mok_test::DeviceCase& device, int iterations) {
    mok_test::VirtualRank& v = device.ranks[0];
    cudaEvent_t begin, end;
    MOK_CUDA(cudaEventCreate(&begin));
    MOK_CUDA(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < iterations; ++i) {
        MOK_CUDA(cudaMemsetAsync(v.params.signals, 0x3f, plan::num_signals(v.problem) * 4));
        MOK_CUDA(cudaMemsetAsync(v.control.at<char>(), 0, 256));
        MOK_CUDA(cudaMemsetAsync(v.control.at<char>(4), 0x3f, 4));
        MOK_CUDA(cudaEventRecord(begin));
        MOK_CUDA(kernels::launch_forward(v.params, v.routed, v.shared, 132, nullptr));
        MOK_CUDA(cudaEventRecord(end));
        MOK_CUDA(cudaDeviceSynchronize());
        float ms;
        MOK_CUDA(cudaEventElapsedTime(&ms, begin, end));
        times.push_back(ms);
    }
    return median(times);
}

void bench(const Shape& s, int64_t tokens, cli::Routing routing, bool saves, int iterations,
           const char* log_folder) {
    const cli::RandomCase c = bench_case(s, tokens, routing);
    mok_test::DeviceOptions options;
    options.saves_context = saves;
    mok_test::DeviceCase device(c, options);
    cudaEvent_t e[4];
    for (auto& event : e) MOK_CUDA(cudaEventCreate(&event));
    std::vector<float> whole, pass, sum;
    mok_test::VirtualRank& v = device.ranks[0];
    for (int i = 0; i < iterations + 5; ++i) {
        MOK_CUDA(cudaEventRecord(e[0]));
        MOK_CUDA(cudaMemsetAsync(v.params.signals, 0, plan::num_signals(v.problem) * 4));
        MOK_CUDA(cudaMemsetAsync(v.control.at<char>(), 0, 256));
        MOK_CUDA(cudaEventRecord(e[1]));
        MOK_CUDA(kernels::launch_forward(v.params, v.routed, v.shared, options.max_sms, nullptr));
        MOK_CUDA(cudaEventRecord(e[2]));
        MOK_CUDA(kernels::launch_reduce(v.reduce, nullptr));
        MOK_CUDA(cudaEventRecord(e[3]));
        MOK_CUDA(cudaDeviceSynchronize());
        if (i < 5) continue;
        float ms;
        MOK_CUDA(cudaEventElapsedTime(&ms, e[0], e[3]));
        whole.push_back(ms);
        MOK_CUDA(cudaEventElapsedTime(&ms, e[1], e[2]));
        pass.push_back(ms);
        MOK_CUDA(cudaEventElapsedTime(&ms, e[2], e[3]));
        sum.push_back(ms);
    }
    const float products = products_alone(device, iterations);
    const double flops = 6.0 * tokens * s.top_k * s.hidden * s.intermediate;
    std::printf(
        "%-16s T %5ld %s %s: whole %.3f ms %.0f TFLOP/s; pass %.3f ms %.0f TFLOP/s; sum %.3f ms; "
        "products alone %.3f ms %.0f TFLOP/s %s\n",
        s.name, long(tokens), cli::routing_name(routing), saves ? "training" : "inference",
        median(whole), flops / median(whole) * 1e-9, median(pass), flops / median(pass) * 1e-9,
        median(sum), products, flops / products * 1e-9, device.fault().c_str());
    std::fflush(stdout);
    if (log_folder != nullptr) {
        const std::string path =
            std::string(log_folder) + "/trace_" + s.name + "_" + std::to_string(tokens) + ".txt";
        FILE* log = std::fopen(path.c_str(), "w");
        trace_summary(device, log);
        std::fclose(log);
        std::system(("grep tasks, " + path).c_str());
    }
}

// The whole forward with own rows of x read where they lie or moved by the exchange, in turn.
void compare_pushes(const Shape& s, bool saves) {
    const cli::RandomCase c = bench_case(s, 2048, cli::Routing::Balanced);
    mok_test::DeviceOptions options;
    options.saves_context = saves;
    mok_test::DeviceCase direct(c, options);
    mok_test::DeviceCase exchanged(c, options);
    cudaEvent_t begin, end;
    MOK_CUDA(cudaEventCreate(&begin));
    MOK_CUDA(cudaEventCreate(&end));
    std::vector<float> times[2];
    for (int i = 0; i < 40; ++i) {
        mok_test::DeviceCase& device = i % 2 == 0 ? direct : exchanged;
        MOK_CUDA(cudaEventRecord(begin));
        device.run(nullptr);
        MOK_CUDA(cudaEventRecord(end));
        MOK_CUDA(cudaDeviceSynchronize());
        float ms;
        MOK_CUDA(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 8) times[i % 2].push_back(ms);
    }
    std::printf(
        "%s %s: whole, x where it lies %.3f ms, by the exchange %.3f ms; products %.3f and "
        "%.3f ms\n",
        s.name, saves ? "training" : "inference", median(times[0]), median(times[1]),
        products_alone(direct, 10), products_alone(exchanged, 10));
}

}  // namespace

int main(int argc, char** argv) {
    const auto& shapes = mok_test::kSlices;
    if (argc > 1 && std::string(argv[1]) == "pushes") {
        for (const Shape& s : shapes) {
            compare_pushes(s, true);
            compare_pushes(s, false);
        }
        return 0;
    }
    if (argc > 1 && std::string(argv[1]) == "sweep") {
        for (const Shape& s : {shapes[0], shapes[2]}) {
            const cli::RandomCase c = bench_case(s, 2048, cli::Routing::Balanced);
            for (const bool saves : {false, true}) {
                for (const int64_t b : {512, 1024, 1408, 2176, 4352, 8704, 131072}) {
                    mok_test::DeviceOptions options;
                    options.saves_context = saves;
                    options.tuning.minibatch_rows = b;
                    mok_test::DeviceCase device(c, options);
                    const float ms = products_alone(device, 8);
                    std::printf("%s %s b %ld: products alone %.3f ms %.0f TFLOP/s\n", s.name,
                                saves ? "training" : "inference", long(b), ms,
                                6e-9 * 2048 * s.top_k * s.hidden * s.intermediate / ms);
                }
            }
        }
        return 0;
    }
    if (argc > 1 && std::string(argv[1]) == "epilogue") {
        for (const Shape& s : {shapes[0], shapes[2]}) {
            const cli::RandomCase c = bench_case(s, 2048, cli::Routing::Balanced);
            mok_test::DeviceOptions with, without;
            without.saves_context = false;
            mok_test::DeviceCase a(c, with), b(c, without);
            for (int round = 0; round < 4; ++round) {
                std::printf("%s products alone: training %.3f ms, inference %.3f ms\n", s.name,
                            products_alone(a, 6), products_alone(b, 6));
            }
            trace_summary(a, stdout);
            trace_summary(b, stdout);
        }
        return 0;
    }
    const char* log = argc > 1 ? argv[1] : nullptr;
    for (const int64_t tokens : {2048, 8192}) {
        for (const Shape& s : shapes) {
            bench(s, tokens, cli::Routing::Balanced, true, 20, tokens == 2048 ? log : nullptr);
            if (tokens == 2048) bench(s, tokens, cli::Routing::Balanced, false, 20, nullptr);
        }
    }
}
