// Windows that ranks share, and the ranks' barrier on the device: virtual ranks on one GPU, NCCL
// with one rank, and a process per GPU where there are several.
//     gpu_test_peer_memory            everything that this machine can
//     gpu_test_peer_memory SCENARIO   one rank of a group of processes, started by the above
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "comm/agreement.h"
#include "comm/cuda/device_memory.h"
#include "comm/cuda/nccl_memory.h"
#include "comm/cuda/rank_barrier.h"
#include "comm/cuda/runtime.h"
#include "comm/group_state.h"
#include "comm/local_rank.h"
#include "comm/rank_processes.h"

namespace {

using namespace mok;
using comm::demand_cuda;
using Clock = std::chrono::steady_clock;

constexpr int kWords = 1 << 16;  // what a rank writes to each window, in u32
constexpr int64_t kFlagBytes = 4096;

std::atomic<int> num_failures = 0;

void expect(bool is_met, const std::string& what) {
    if (is_met) return;
    ++num_failures;
    std::printf("  FAILED: %s\n", what.c_str());
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

GroupOptions bounded(double seconds) {
    return {.timeout = std::chrono::duration<double>(seconds)};
}

// ---- Device code ------------------------------------------------------------------------------

struct Bases {
    std::byte* of_rank[8];
};

__device__ uint32_t expected_word(int from, int to, uint32_t round, int i) {
    return 1000003u * round + 8191u * from + 131u * to + i;
}
__device__ uint32_t* words_of(std::byte* window, int from) {
    return reinterpret_cast<uint32_t*>(window + kFlagBytes) + from * kWords;
}

// Rank `rank` writes its part of every rank's window; the round counts in device memory, so that a
// graph may be launched again.
__global__ void write_all(Bases bases, int rank, int num_ranks, const uint32_t* round) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int to = 0; to < num_ranks && i < kWords; ++to) {
        words_of(bases.of_rank[to], rank)[i] = expected_word(rank, to, *round, i);
    }
}

// Counts what is wrong in this rank's window, and what it reads wrong from the others' windows.
__global__ void check_all(Bases bases, int rank, int num_ranks, const uint32_t* round,
                          uint32_t* num_wrong) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= kWords) return;
    for (int from = 0; from < num_ranks; ++from) {
        for (int to = 0; to < num_ranks; ++to) {
            const uint32_t got = words_of(bases.of_rank[to], from)[i];
            if (got != expected_word(from, to, *round, i)) atomicAdd(num_wrong, 1u);
        }
    }
}

__global__ void next_round(uint32_t* round) {
    ++*round;
}

__global__ void read_words(const uint4* from, int64_t count, uint32_t* sum) {
    uint32_t own = 0;
    const int64_t step = int64_t{1} * gridDim.x * blockDim.x;
    for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const uint4 v = from[i];
        own += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (own == 0x12345678) *sum = own;
}

// ---- A rank's things --------------------------------------------------------------------------

struct Rank {
    Rank(const Group& group, const comm::PeerMemory& memory, double bound_s) : group(group) {
        demand_cuda(cudaMalloc(&words, 4 * sizeof(uint32_t)), "words");
        demand_cuda(cudaMemset(words, 0, 4 * sizeof(uint32_t)), "words");
        demand_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
        std::vector<uint64_t*> flags;
        for (int r = 0; r < group.size(); ++r) {
            bases.of_rank[r] = memory.base(r);
            flags.push_back(reinterpret_cast<uint64_t*>(memory.base(r)));
        }
        barrier = std::make_unique<comm::RankBarrier>(group.rank(), flags, aborted(),
                                                      std::chrono::duration<double>(bound_s));
        // Loads the kernels before any of them waits.
        cudaFuncAttributes attributes;
        demand_cuda(cudaFuncGetAttributes(&attributes, write_all), "loading");
        demand_cuda(cudaFuncGetAttributes(&attributes, check_all), "loading");
        demand_cuda(cudaFuncGetAttributes(&attributes, next_round), "loading");
        demand_cuda(cudaFuncGetAttributes(&attributes, read_words), "loading");
        demand_cuda(cudaDeviceSynchronize(), "setting up");
        group.state().barrier(group.rank(), "barrier after setting up");
    }
    ~Rank() {
        cudaStreamSynchronize(stream);
        cudaStreamDestroy(stream);
        cudaFree(words);
    }

    uint32_t* aborted() const { return words; }
    uint32_t* round() const { return words + 1; }
    uint32_t* num_wrong() const { return words + 2; }
    uint32_t value_of(const uint32_t* word) const {
        uint32_t value = 0;
        demand_cuda(cudaMemcpyAsync(&value, word, sizeof(value), cudaMemcpyDeviceToHost, stream),
                    "reading a word");
        demand_cuda(cudaStreamSynchronize(stream), "reading a word");
        return value;
    }
    void enqueue_round() {
        next_round<<<1, 1, 0, stream>>>(round());
        write_all<<<kWords / 256, 256, 0, stream>>>(bases, group.rank(), group.size(), round());
        barrier->enqueue(stream);
        check_all<<<kWords / 256, 256, 0, stream>>>(bases, group.rank(), group.size(), round(),
                                                    num_wrong());
        barrier->enqueue(stream);
    }
    // Waits, at most for so long, until the stream has ended.
    bool ends_within(double seconds) const {
        const auto start = Clock::now();
        while (cudaStreamQuery(stream) == cudaErrorNotReady) {
            if (seconds_since(start) > seconds) return false;
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        return true;
    }

    Group group;
    Bases bases{};
    uint32_t* words = nullptr;
    cudaStream_t stream = nullptr;
    std::unique_ptr<comm::RankBarrier> barrier;
};

int64_t window_bytes(int num_ranks) {
    return kFlagBytes + int64_t{4} * kWords * num_ranks;
}

// ---- What every kind of group must do ---------------------------------------------------------

void expect_no_fault(const Rank& rank, const char* where) {
    const auto fault = rank.barrier->fault();
    expect(!fault, std::string(where) + ": " + (fault ? sentence(*fault, "barrier") : "") +
                       ", epoch " + std::to_string(fault ? fault->epoch : 0));
}

// Ranks of one process do not run ahead of those that have enqueued nothing yet.
void wait_for_all(Rank& rank) {
    demand_cuda(cudaStreamSynchronize(rank.stream), "running");
    rank.group.state().barrier(rank.group.rank(), "barrier between rounds");
}

void rounds_are_right(Rank& rank) {
    for (int i = 0; i < 100; ++i) {
        rank.enqueue_round();
        if (i % 10 == 9) wait_for_all(rank);
    }
    expect_no_fault(rank, "rounds");
    const uint32_t wrong = rank.value_of(rank.num_wrong());
    expect(wrong == 0, "rounds: expected no wrong word, found " + std::to_string(wrong));
    expect(rank.value_of(rank.round()) == 100, "rounds: not all ran");
}

void graphs_are_right(Rank& rank) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t launchable = nullptr;
    demand_cuda(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal), "capture");
    rank.enqueue_round();
    rank.enqueue_round();
    demand_cuda(cudaStreamEndCapture(rank.stream, &graph), "capture");
    demand_cuda(cudaGraphInstantiate(&launchable, graph, 0), "instantiating a graph");
    demand_cuda(cudaGraphUpload(launchable, rank.stream), "uploading a graph");
    demand_cuda(cudaStreamSynchronize(rank.stream), "uploading a graph");
    rank.group.state().barrier(rank.group.rank(), "barrier before the graphs");
    const uint32_t before = rank.value_of(rank.round());
    for (int i = 0; i < 50; ++i) {
        demand_cuda(cudaGraphLaunch(launchable, rank.stream), "graph");
        if (i % 5 == 4) wait_for_all(rank);
    }
    expect_no_fault(rank, "graphs");
    const uint32_t wrong = rank.value_of(rank.num_wrong());
    expect(wrong == 0, "graphs: expected no wrong word, found " + std::to_string(wrong));
    expect(rank.value_of(rank.round()) == before + 100, "graphs: not all ran");
    rank.group.state().barrier(rank.group.rank(), "barrier after the graphs");
    cudaGraphExecDestroy(launchable);
    cudaGraphDestroy(graph);
}

void time_barrier(Rank& rank, const char* name) {
    constexpr int kTimes = 100;
    cudaEvent_t begin, end;
    demand_cuda(cudaEventCreate(&begin), "event");
    demand_cuda(cudaEventCreate(&end), "event");
    rank.barrier->enqueue(rank.stream);
    cudaEventRecord(begin, rank.stream);
    for (int i = 0; i < kTimes; ++i) rank.barrier->enqueue(rank.stream);
    cudaEventRecord(end, rank.stream);
    demand_cuda(cudaEventSynchronize(end), "timing");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (rank.group.rank() == 0) {
        std::printf("  %s: %.2f us a barrier, launch to launch\n", name, ms * 1000 / kTimes);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
}

// The last rank does not come: every other one says so, after the bound and not before.
void late_rank_is_named(Rank& rank, double bound_s) {
    const int late = rank.group.size() - 1;
    rank.group.state().barrier(rank.group.rank(), "barrier before the late rank");
    if (rank.group.rank() == late) return;
    const auto start = Clock::now();
    rank.barrier->enqueue(rank.stream);
    std::this_thread::sleep_for(std::chrono::duration<double>(bound_s / 2));
    const std::string who = "rank " + std::to_string(rank.group.rank()) + ": ";
    expect(rank.barrier->late_rank() == late, who + "the wait is not told of");
    expect(!rank.barrier->fault(), who + "a fault before the bound");
    expect(rank.ends_within(bound_s + 5), who + "the bound did not end the wait");
    const double waited = seconds_since(start);
    expect(waited >= bound_s * 0.99, who + "ended too early, after " + std::to_string(waited));
    const auto fault = rank.barrier->fault();
    expect(fault.has_value(), who + "no fault");
    if (fault) {
        expect(fault->late_rank == late && fault->rank == rank.group.rank(), who + "wrong ranks");
        std::printf("  %s (epoch %llu)\n", sentence(*fault, "barrier of a test").c_str(),
                    static_cast<unsigned long long>(fault->epoch));
    }
    expect(rank.value_of(rank.aborted()) == 1, who + "aborted is not set");
    const auto again = Clock::now();
    for (int i = 0; i < 3; ++i) rank.barrier->enqueue(rank.stream);
    expect(rank.ends_within(5) && seconds_since(again) < bound_s, who + "a later barrier waited");
}

// ---- Virtual ranks on one GPU -----------------------------------------------------------------

void for_each_rank(int num_ranks, double bound_s, const std::function<void(Rank&)>& body) {
    std::vector<std::jthread> threads;
    for (const Group& group : Group::in_process(num_ranks, bounded(60))) {
        threads.emplace_back([&body, group, bound_s] {
            try {
                const auto memory = comm::make_device_memory(group, window_bytes(group.size()));
                Rank rank(group, *memory, bound_s);
                body(rank);
                // Nobody frees memory while another rank's barrier waits.
                group.state().barrier(group.rank(), "barrier at the end");
            } catch (const std::exception& e) {
                expect(false, e.what());
                group.abandon(e.what());
            }
        });
    }
}

void test_virtual_ranks() {
    for (const int num_ranks : {1, 2, 3, 4}) {  // RankBarrier says why no more
        for_each_rank(num_ranks, 5, [](Rank& rank) {
            rounds_are_right(rank);
            graphs_are_right(rank);
            time_barrier(rank, ("R=" + std::to_string(rank.group.size())).c_str());
        });
    }
}

void test_late_virtual_rank() {
    for_each_rank(4, 0.5, [](Rank& rank) { late_rank_is_named(rank, 0.5); });
}

void test_stop() {
    for_each_rank(2, 20, [](Rank& rank) {
        if (rank.group.rank() == 1) return;
        rank.barrier->enqueue(rank.stream);
        expect(!rank.ends_within(0.05), "stop: the barrier does not wait");
        rank.barrier->stop();
        const auto start = Clock::now();
        expect(rank.ends_within(5), "stop: the barrier waits on");
        std::printf("  stopped after %.2f ms\n", seconds_since(start) * 1000);
        expect(!rank.barrier->fault(), "stop: a fault");
    });
}

// ---- NCCL -------------------------------------------------------------------------------------

void test_nccl_alone() {
    const Group group = Group::self(bounded(60));
    const auto start = Clock::now();
    const auto memory = comm::make_nccl_memory(group, window_bytes(1));
    std::printf("  window of NCCL in %.2f s at %p\n", seconds_since(start),
                static_cast<void*>(memory->base(0)));
    const auto second = comm::make_nccl_memory(group, int64_t{1} << 30);
    expect(second->base(0) != nullptr && second->base(0) != memory->base(0), "second window");
    std::vector<uint32_t> words(1024, 1);
    demand_cuda(
        cudaMemcpy(words.data(), second->base(0) + (1 << 30) - 4096, 4096, cudaMemcpyDeviceToHost),
        "reading a window");
    for (const uint32_t word : words) expect(word == 0, "the window is not zero");
    Rank rank(group, *memory, 20);
    rounds_are_right(rank);
    graphs_are_right(rank);
    time_barrier(rank, "alone, in a window of NCCL");
}

void test_nccl_is_missing() {
    setenv("MOK_NCCL_LIBRARY", "/no/such/libnccl.so", 1);
    try {
        comm::make_nccl_memory(Group::self(), 4096);
        expect(false, "a library that is not there was opened");
    } catch (const Error& e) {
        std::printf("  %s\n", e.what());
    }
}

// ---- Processes --------------------------------------------------------------------------------

void bandwidth(Rank& rank, const comm::PeerMemory& memory) {
    constexpr int kTimes = 10;
    const int peer = (rank.group.rank() + 1) % rank.group.size();
    cudaEvent_t begin, end;
    demand_cuda(cudaEventCreate(&begin), "event");
    demand_cuda(cudaEventCreate(&end), "event");
    for (int i = -1; i < kTimes; ++i) {
        if (i == 0) cudaEventRecord(begin, rank.stream);
        read_words<<<264, 512, 0, rank.stream>>>(reinterpret_cast<const uint4*>(memory.base(peer)),
                                                 memory.bytes() / 16, rank.words + 3);
    }
    cudaEventRecord(end, rank.stream);
    demand_cuda(cudaEventSynchronize(end), "timing");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    std::printf("  rank %d reads rank %d's window at %.0f GB/s\n", rank.group.rank(), peer,
                static_cast<double>(memory.bytes()) * kTimes / ms * 1e-6);
    rank.group.state().barrier(rank.group.rank(), "barrier after reading");
}

// Rank 1 dies while the others' barriers wait: the host hears of it and ends the wait.
void dead_rank_ends_the_wait(Rank& rank) {
    rank.group.state().barrier(rank.group.rank(), "barrier before the death");
    if (rank.group.rank() == 1) raise(SIGKILL);
    rank.barrier->enqueue(rank.stream);
    const auto start = Clock::now();
    while (!rank.group.state().broken() && seconds_since(start) < 30) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    rank.barrier->stop();
    expect(rank.ends_within(5), "death: the barrier waits on");
    std::printf("  the wait for a dead rank ended after %.0f ms\n", seconds_since(start) * 1000);
    try {
        rank.group.state().throw_if_broken(rank.group.rank());
        expect(false, "death: the group is whole");
    } catch (const TimeoutError& e) {
        std::printf("  %s\n", e.what());
    }
}

// Exit status 0: right, 1: something is not.
int run_rank(const std::string& scenario) {
    const Group group = Group::from_environment(bounded(60));
    int num_gpus = 0;
    demand_cuda(cudaGetDeviceCount(&num_gpus), "counting GPUs");
    const bool shares = scenario == "same_gpu";
    demand_cuda(cudaSetDevice(shares ? 0 : comm::gpu_of(group.local_rank(), num_gpus)), "device");
    const int64_t bytes = scenario == "exchange" ? 256 << 20 : window_bytes(group.size());
    const auto start = Clock::now();
    std::unique_ptr<comm::PeerMemory> memory;
    try {
        memory = comm::make_nccl_memory(group, bytes);
    } catch (const Error& e) {
        if (group.rank() == 0) std::printf("  %s\n", e.what());
        expect(shares, "windows were refused");
        return num_failures > 0;
    }
    expect(!shares, "two ranks on one GPU were not refused");
    Rank rank(group, *memory, scenario == "late" ? 0.5 : 20);
    if (group.rank() == 0) std::printf("  windows in %.2f s\n", seconds_since(start));
    if (scenario == "exchange") {
        rounds_are_right(rank);
        graphs_are_right(rank);
        time_barrier(rank, "between processes");
        bandwidth(rank, *memory);
    } else if (scenario == "late") {
        late_rank_is_named(rank, 0.5);
        group.state().barrier(group.rank(), "barrier at the end");
    } else {
        dead_rank_ends_the_wait(rank);
        std::fflush(stdout);
        _exit(num_failures > 0);  // what the group's end needs is gone
    }
    return num_failures > 0;
}

int spawn(const char* scenario, int num_ranks) {
    comm::SpawnOptions options;
    options.num_ranks = num_ranks;
    options.command = {comm::own_program(), scenario};
    std::fflush(stdout);
    return comm::run_rank_processes(options);
}

void run_test(const char* name, const std::function<void()>& test) {
    const int before = num_failures;
    std::printf("%s\n", name);
    std::fflush(stdout);
    const auto start = Clock::now();
    try {
        test();
    } catch (const std::exception& e) {
        expect(false, e.what());
    }
    std::printf("%s: %s, %.1f s\n", name, num_failures == before ? "passed" : "FAILED",
                seconds_since(start));
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        if (argc > 1) return run_rank(argv[1]);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
    run_test("virtual ranks", test_virtual_ranks);
    run_test("late virtual rank", test_late_virtual_rank);
    run_test("stop", test_stop);
    run_test("NCCL alone", test_nccl_alone);
    run_test("two processes on one GPU",
             [] { expect(spawn("same_gpu", 2) == 0, "two processes on one GPU"); });
    int num_gpus = 0;
    cudaGetDeviceCount(&num_gpus);
    if (num_gpus > 1) {
        const int ranks = num_gpus < 8 ? num_gpus : 8;
        run_test("processes: exchange", [=] { expect(spawn("exchange", ranks) == 0, "exchange"); });
        run_test("processes: late rank", [=] { expect(spawn("late", ranks) == 0, "late rank"); });
        run_test("processes: dead rank", [=] {
            // The worst status is the dead rank's.
            expect(spawn("dead", ranks) == 128 + SIGKILL, "dead rank");
        });
    }
    run_test("NCCL is missing", test_nccl_is_missing);
    std::printf("%s\n", num_failures == 0 ? "ALL PASSED" : "FAILED");
    return num_failures > 0;
}
