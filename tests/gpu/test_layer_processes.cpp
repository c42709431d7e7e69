#include <signal.h>
#include <unistd.h>

#include <thread>

#include "comm/group_state.h"
#include "comm/rank_processes.h"
#include "layer_case.h"

// The layer on ranks in processes, a GPU each: results, graphs, ranks that are late or die.
//     gpu_test_layer_processes            a process per GPU for each scenario; none with one GPU
//     gpu_test_layer_processes SCENARIO   one rank of it
// A stand-alone program: prints what failed and ends with 1 then.
namespace {

using namespace mok;
using namespace mok_test;
using cli::RandomCase;

constexpr int64_t kTokens = 256;  // of a rank
constexpr std::chrono::duration<double> kBound{60}, kLateBound{20};
constexpr int kWrong = 200;  // exit status of a rank that found something, above any signal's

RandomCase case_of_ranks(int num_ranks, uint64_t seed) {
    cli::CaseOptions o = shape_case(512, 320, 12, 4, kTokens * num_ranks);
    o.masked = 0.1;
    o.duplicates = 0.1;
    o.seed = seed;
    return cli::random_case(o);
}

// A rank's part of a case, on its GPU.
struct RankCase {
    RankCase(const Group& group, const RandomCase& c)
        : workspace(group, c.shape, {}, kTokens), tensors(group.device()) {
        const int64_t h = c.shape.hidden, i = c.shape.intermediate, k = c.shape.top_k;
        const int64_t first = group.rank() * kTokens;
        const int64_t e = workspace.num_local_experts(), skip = workspace.first_expert() * h * i;
        ids = tensors.input(ConstTensor(c.topk_ids.data() + first * k, DType::I32, {kTokens, k}));
        inputs.x = tensors.input(ConstTensor(c.x.data() + first * h, DType::BF16, {kTokens, h}));
        inputs.topk_weights =
            tensors.input(ConstTensor(c.topk_weights.data() + first * k, DType::F32, {kTokens, k}));
        weights.gate = tensors.input(ConstTensor(c.gate.data() + skip, DType::BF16, {e, i, h}));
        weights.up = tensors.input(ConstTensor(c.up.data() + skip, DType::BF16, {e, i, h}));
        weights.down = tensors.input(ConstTensor(c.down.data() + skip, DType::BF16, {e, h, i}));
        host_out.resize(kTokens * h);
        out = tensors.output(Tensor(host_out.data(), DType::BF16, {kTokens, h}));
    }
    void enqueue() {
        const Schedule schedule(workspace, ids);
        forward(workspace, schedule, weights, inputs, out);
    }

    Workspace workspace;
    cli::DeviceTensors tensors;
    ConstTensor ids;
    Inputs inputs;
    Weights weights;
    std::vector<Bf16> host_out;
    Tensor out;
};

std::vector<Bf16> rows_of_rank(const std::vector<Bf16>& output, const Group& group) {
    const int64_t size = std::ssize(output) / group.size();
    const auto begin = output.begin() + group.rank() * size;
    return {begin, begin + size};
}

// One rank's bits, on this rank's own GPU.
std::vector<Bf16> expected_output(const Group& group, const RandomCase& c) {
    cli::GlobalOptions alone = on_gpu(1);
    alone.device = group.device();
    return rows_of_rank(output_of(c, alone), group);
}

void check_results(const Group& group) {
    for (const uint64_t seed : {1, 2}) {
        const RandomCase c = cli::random_case(rich_case(kTokens * group.size(), seed));
        cli::GlobalOptions alone = on_gpu(1), together = on_gpu(group.size());
        alone.device = together.device = group.device();
        together.processes = group;
        const cli::GlobalResult want = cli::run_global(c.shape, c.inputs(), alone);
        for (const bool is_split : {false, true}) {
            together.split_backward = together.recompute = together.poison = is_split;
            const cli::GlobalResult found = cli::run_global(c.shape, c.inputs(), together);
            for (const Mismatch& m : cli::compare_results(c.shape, found, want)) {
                report(false, m.sentence());
            }
            report(true, "results");
        }
    }
}

// Graphs that follow each other at once, with routings that change; schedules alone among them.
void check_graphs(const Group& group) {
    const RandomCase a = case_of_ranks(group.size(), 1), b = case_of_ranks(group.size(), 2);
    RandomCase changed = a;
    changed.topk_ids = b.topk_ids;
    changed.topk_weights = b.topk_weights;
    const std::vector<Bf16> want_a = expected_output(group, a),
                            want_changed = expected_output(group, changed);
    RankCase t(group, a);
    const Stream stream;
    t.workspace.set_stream(stream);
    t.enqueue();
    synchronize(t.workspace);
    const Graph call(stream, [&] { t.enqueue(); });
    const Graph schedule(stream, [&] { const Schedule s(t.workspace, t.ids); });
    std::printf("rank %d: a captured forward: %d kernels\n", group.rank(),
                call.count(cudaGraphNodeTypeKernel));
    const int64_t k = a.shape.top_k, bytes = kTokens * k * 4;
    for (int round = 0; round < 20; ++round) {
        const RandomCase& now = round % 2 == 0 ? a : changed;
        const int64_t first = group.rank() * kTokens * k;
        MOK_CUDA(cudaMemcpyAsync(const_cast<void*>(t.ids.data), now.topk_ids.data() + first, bytes,
                                 cudaMemcpyHostToDevice, stream));
        MOK_CUDA(cudaMemcpyAsync(const_cast<void*>(t.inputs.topk_weights.data),
                                 now.topk_weights.data() + first, bytes, cudaMemcpyHostToDevice,
                                 stream));
        for (int i = 0; i < round % 3; ++i) schedule.replay();
        if (round % 5 == 4) {
            t.enqueue();
        } else {
            call.replay();
        }
        if (round % 4 != 3 && round + 1 < 20) continue;
        synchronize(t.workspace);
        t.tensors.fetch();
        same_bits(t.host_out, round % 2 == 0 ? want_a : want_changed,
                  "graphs, round " + std::to_string(round));
    }
}

// Runs a call to which the last rank does not come, on all others.
template <class End>
void call_without_the_last(const Group& group, RankCase& t, const std::string& sentence_part,
                           End&& end) {
    t.enqueue();
    synchronize(t.workspace);
    group.state().barrier(group.rank(), "barrier before the call");
    if (group.rank() == group.size() - 1) return end();
    t.enqueue();
    const auto start = std::chrono::steady_clock::now();
    expect_throw<TimeoutError>(sentence_part, "a missing rank", [&] { synchronize(t.workspace); });
    expect_throw<TimeoutError>(sentence_part, "the call after it", [&] { t.enqueue(); });
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    report(taken < kLateBound + std::chrono::seconds(10), "a missing rank: the wait did not end");
    report(cudaDeviceSynchronize() == cudaSuccess, "the context is not usable");
}

void check_late_rank(const Group& group) {
    const RandomCase c = case_of_ranks(group.size(), 1);
    RankCase t(group, c);
    const std::string last = std::to_string(group.size() - 1);
    call_without_the_last(group, t, "rank " + last + " did not come; the group is broken",
                          [&group] {
                              for (int i = 0; i < 600 && !group.state().broken(); ++i) {
                                  std::this_thread::sleep_for(std::chrono::milliseconds(100));
                              }
                          });
}

void check_dead_rank(const Group& group) {
    const RandomCase c = case_of_ranks(group.size(), 1);
    RankCase t(group, c);
    const std::string last = std::to_string(group.size() - 1);
    call_without_the_last(group, t, "rank " + last + " is lost", [] { raise(SIGKILL); });
}

struct Scenario {
    const char* name;
    void (*check)(const Group&);
    std::chrono::duration<double> timeout;
    int status;  // of a right run
};
constexpr Scenario kScenarios[] = {{"results", check_results, kBound, 0},
                                   {"graphs", check_graphs, kBound, 0},
                                   {"late", check_late_rank, kLateBound, 0},
                                   {"dead", check_dead_rank, kBound, 128 + SIGKILL}};

// Exit status 0: right, kWrong: something is not.
int run_rank(const std::string& name) {
    dup2(STDERR_FILENO, STDOUT_FILENO);  // all but rank 0 have an error stream alone
    for (const Scenario& s : kScenarios) {
        if (name != s.name) continue;
        try {
            const Group group = Group::cuda_from_environment({.timeout = s.timeout});
            MOK_CUDA(cudaSetDevice(group.device().index));
            s.check(group);
        } catch (const std::exception& e) {
            report(false, name + ": " + e.what());
        }
        std::printf("%s: %d passed, %d failed\n", s.name, num_passed, num_failed);
        return num_failed == 0 ? 0 : kWrong;
    }
    return kWrong;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) return run_rank(argv[1]);
    const int num_gpus = count_cuda_devices();
    if (num_gpus < 2) {
        std::printf("test_layer_processes: expected two GPUs, found %d: nothing was run\n",
                    num_gpus);
        return 0;
    }
    int num_wrong = 0;
    for (const Scenario& s : kScenarios) {
        comm::SpawnOptions options;
        options.num_ranks = std::min(num_gpus, 8);
        options.command = {comm::own_program(), s.name};
        options.grace = std::chrono::seconds(30);  // they have something to say
        std::printf("%s on %d GPUs\n", s.name, options.num_ranks);
        std::fflush(stdout);
        const int status = comm::run_rank_processes(options);
        if (status == s.status) continue;
        ++num_wrong;
        std::printf("FAIL %s: expected exit status %d, found %d\n", s.name, s.status, status);
    }
    std::printf("test_layer_processes: %d scenarios failed\n", num_wrong);
    return num_wrong == 0 ? 0 : 1;
}
