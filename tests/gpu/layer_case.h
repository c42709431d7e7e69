#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "cli/common/device_tensors.h"
#include "cli/common/random.h"
#include "cli/common/random_case.h"
#include "device_case.h"
#include "openmok/layer.h"

// What the GPU tests of the public API share: a report, cases, and a case's tensors on the device
// of one rank.
namespace mok_test {

inline int num_passed = 0, num_failed = 0;

inline void report(bool ok, const std::string& what) {
    (ok ? num_passed : num_failed) += 1;
    if (!ok) std::printf("FAIL %s\n", what.c_str());
}

inline const mok::Device kGpu{mok::Device::Kind::Cuda, 0};

inline mok::cli::CaseOptions shape_case(int64_t h, int64_t i, int64_t e, int64_t k,
                                        int64_t tokens) {
    mok::cli::CaseOptions o;
    o.shape.hidden = h;
    o.shape.intermediate = i;
    o.shape.num_experts = e;
    o.shape.top_k = k;
    o.num_tokens = tokens;
    return o;
}

// Masked and duplicate choices, biases, a shared expert with weights, a clamped activation.
inline mok::cli::CaseOptions rich_case(int64_t tokens, uint64_t seed = 1) {
    mok::cli::CaseOptions o = shape_case(512, 320, 8, 4, tokens);
    o.biases = true;
    o.masked = 0.2;
    o.duplicates = 0.1;
    o.shape.shared_intermediate = 200;
    o.shared_weights = true;
    o.shape.activation = {7.0f, 1.702f, 1.0f};
    o.seed = seed;
    return o;
}

// Outputs, bit for bit.
inline void same_bits(const std::vector<mok::Bf16>& a, const std::vector<mok::Bf16>& b,
                      const std::string& what) {
    int64_t differ = 0, first = -1;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        if (a[i].bits == b[i].bits) continue;
        if (first < 0) first = static_cast<int64_t>(i);
        ++differ;
    }
    const bool ok = a.size() == b.size() && differ == 0;
    char text[120] = "";
    if (!ok) {
        std::snprintf(text, sizeof(text), ": sizes %zu and %zu, %ld differ, the first at %ld",
                      a.size(), b.size(), long(differ), long(first));
    }
    report(ok, what + text);
}

// Calls `call`, which must throw an Exception whose sentence holds `part`.
template <class Exception, class Call>
void expect_throw(const std::string& part, const std::string& what, Call&& call) {
    std::string found = "nothing was thrown";
    bool right = false;
    try {
        call();
    } catch (const Exception& e) {
        found = e.what();
        right = found.find(part) != std::string::npos;
    } catch (const std::exception& e) {
        found = std::string("another exception: ") + e.what();
    }
    report(right, what + ": expected \"" + part + "\", found: " + found);
}

// The tensors of a case on the GPU of a single rank.
struct OnGpu {
    explicit OnGpu(const mok::cli::RandomCase& c) : tensors(kGpu) {
        const mok::cli::GlobalInputs all = c.inputs();
        ids = tensors.input(all.topk_ids);
        inputs = tensors.input(mok::Inputs{all.x, all.topk_weights, all.shared_weights});
        weights = tensors.input(all.weights);
        const int64_t tokens = c.num_tokens, h = c.shape.hidden;
        d_out =
            tensors.input(mok::ConstTensor(c.grad_output.data(), mok::DType::BF16, {tokens, h}));
        host_out.resize(tokens * h, mok::Bf16{0x7fff});
        out = tensors.output(mok::Tensor(host_out.data(), mok::DType::BF16, {tokens, h}));
        host_d_x = host_out;
        input_grads.x = tensors.output(mok::Tensor(host_d_x.data(), mok::DType::BF16, {tokens, h}));
        host_d_down.resize(c.down.size());
        weight_grads.down = tensors.output(mok::Tensor(
            host_d_down.data(), mok::DType::F32, {c.shape.num_experts, h, c.shape.intermediate}));
    }
    const std::vector<mok::Bf16>& output() {
        tensors.fetch();
        return host_out;
    }
    // d_x and the gradient of down, whose bits must be those of a result.
    void expect_gradients(const mok::cli::GlobalResult& want, const std::string& what) {
        tensors.fetch();
        same_bits(host_d_x, want.d_x, what + ": d_x");
        report(std::memcmp(host_d_down.data(), want.d_down.data(), host_d_down.size() * 4) == 0,
               what + ": d_down");
    }

    mok::cli::DeviceTensors tensors;
    mok::ConstTensor ids;
    mok::Inputs inputs;
    mok::Weights weights;
    mok::ConstTensor d_out;
    mok::Tensor out;
    mok::InputGrads input_grads;
    mok::WeightGrads weight_grads;
    std::vector<mok::Bf16> host_out, host_d_x;
    std::vector<float> host_d_down;
};

inline mok::Group one_gpu(mok::GroupOptions options = {}) {
    return mok::Group::cuda_virtual(1, kGpu.index, options).front();
}

// Schedule and forward of a rank that has the whole case.
inline void run_once(mok::Workspace& w, OnGpu& t) {
    const mok::Schedule schedule(w, t.ids);
    mok::Context context;
    forward(w, schedule, t.weights, t.inputs, t.out, context);
}

// Schedule, forward and backward.
inline void run_step(mok::Workspace& w, OnGpu& t) {
    const mok::Schedule schedule(w, t.ids);
    mok::Context context;
    forward(w, schedule, t.weights, t.inputs, t.out, context);
    backward(w, schedule, t.weights, t.inputs, t.d_out, context, t.input_grads, t.weight_grads);
}

inline mok::cli::GlobalOptions on_gpu(int ranks, mok::Tuning tuning = {}) {
    mok::cli::GlobalOptions g;
    g.device = kGpu;
    g.num_ranks = ranks;
    g.tuning = tuning;
    g.group.timeout = std::chrono::seconds(10);
    return g;
}

inline std::vector<mok::Bf16> output_of(const mok::cli::RandomCase& c,
                                        const mok::cli::GlobalOptions& g) {
    return mok::cli::run_global(c.shape, c.inputs(), g).output;
}

class Stream {
  public:
    Stream() { MOK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    ~Stream() { cudaStreamDestroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    operator cudaStream_t() const { return stream_; }

  private:
    cudaStream_t stream_ = nullptr;
};

// A captured call.
class Graph {
  public:
    // Captures what `call` enqueues on the workspace's stream.
    template <class Call>
    Graph(cudaStream_t stream, Call&& call) : stream_(stream) {
        MOK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        call();
        MOK_CUDA(cudaStreamEndCapture(stream, &graph_));
        MOK_CUDA(cudaGraphInstantiate(&exec_, graph_, 0));
    }
    ~Graph() {
        cudaGraphExecDestroy(exec_);
        cudaGraphDestroy(graph_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    void replay() const { MOK_CUDA(cudaGraphLaunch(exec_, stream_)); }
    int count(cudaGraphNodeType wanted) const {
        size_t num = 0;
        MOK_CUDA(cudaGraphGetNodes(graph_, nullptr, &num));
        std::vector<cudaGraphNode_t> nodes(num);
        MOK_CUDA(cudaGraphGetNodes(graph_, nodes.data(), &num));
        return static_cast<int>(std::ranges::count_if(nodes, [wanted](cudaGraphNode_t node) {
            cudaGraphNodeType type;
            MOK_CUDA(cudaGraphNodeGetType(node, &type));
            return type == wanted;
        }));
    }

  private:
    cudaStream_t stream_;
    cudaGraph_t graph_ = nullptr;
    cudaGraphExec_t exec_ = nullptr;
};

// Runs checks by name, all or the one that is asked for, prints how long each took and the sum, and
// returns the exit status.
inline int run_gpu_checks(const char* program,
                          std::initializer_list<std::pair<const char*, void (*)()>> checks,
                          const std::string& only = "") {
    const std::string why_not = mok::why_no_cuda(kGpu.index);
    if (!why_not.empty()) {
        std::printf("%s: %s\n", program, why_not.c_str());
        return 1;
    }
    cudaDeviceProp properties{};
    MOK_CUDA(cudaGetDeviceProperties(&properties, kGpu.index));
    std::printf("%s on %s\n", program, properties.name);
    for (const auto& [name, check] : checks) {
        if (!only.empty() && only != name) continue;
        const auto start = std::chrono::steady_clock::now();
        try {
            check();
        } catch (const std::exception& e) {
            report(false, std::string(name) + ": " + e.what());
        }
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        std::printf("%-20s %.2f s\n", name, taken.count());
        std::fflush(stdout);
    }
    std::printf("%s: %d passed, %d failed\n", program, num_passed, num_failed);
    return num_failed == 0 ? 0 : 1;
}

}  // namespace mok_test
