#include "cli/bench/cuda_timed_layer.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>

#include "cli/bench/bench_record.h"
#include "cli/bench/cuda_rank_timer.h"
#include "cli/bench/traced_pass.h"
#include "cli/common/gather.h"
#include "cli/common/rank_threads.h"
#include "cli/io/sha256.h"
#include "layer/cuda_memory.h"
#include "plan/make_problem.h"
#include "plan/memory_map.h"

namespace mok::cli {
namespace {

using layer::check_cuda;

constexpr const char* kGathering = "gathering of the benchmark";

// A rank's first task begins at 1 ns of its own time.
void start_at_zero(std::vector<TimedTask>& tasks) {
    uint64_t first = ~uint64_t{0};
    for (const TimedTask& t : tasks) first = std::min(first, t.begin_ns);
    for (TimedTask& t : tasks) {
        t.begin_ns = t.begin_ns - first + 1;
        t.end_ns = t.end_ns - first + 1;
        if (t.has_epilogue()) t.multiplied_ns = t.multiplied_ns - first + 1;
    }
}

class CudaTimedLayer final : public TimedLayer {
  public:
    explicit CudaTimedLayer(const Device& device)
        : device_(device), normals_(device, {kInputDeviation, kWeightDeviation}) {}
    explicit CudaTimedLayer(const Group& processes) : CudaTimedLayer(processes.device()) {
        processes_ = processes;
    }

    LayerDevice device() const override;
    void prepare(const BenchCase& c) override;
    double run_ms(BenchPass pass) override {
        return slowest([pass](CudaRankTimer& rank) { return rank.run_ms(pass); });
    }
    double table_ms() override {
        return slowest([](CudaRankTimer& rank) { return rank.table_ms(); });
    }
    PassFacts facts(BenchPass pass) override;
    std::vector<TimedTask> trace(BenchPass pass) override;

  private:
    // body(rank's timer, its place among those of this process) on every rank; alone on this thread
    // where there is one.
    template <class Body>
    void on_ranks(Body&& body) {
        if (groups_.size() == 1) {
            body(*ranks_[0], 0);
            return;
        }
        run_ranks(groups_, [&](const Group& group) { body(*ranks_[group.rank()], group.rank()); });
    }
    // What every process has.
    template <class Value>
    std::vector<Value> of_processes(Value own) const {
        if (!processes_) return {own};
        return gather_values(*processes_, own, kGathering);
    }
    template <class Time>
    double slowest(Time&& time) {
        std::vector<double> ms(groups_.size());
        on_ranks([&](CudaRankTimer& rank, int r) { ms[r] = time(rank); });
        const std::vector<double> all = of_processes(*std::max_element(ms.begin(), ms.end()));
        return *std::max_element(all.begin(), all.end());
    }
    template <class Count>
    int64_t sum(Count&& count) {
        std::vector<int64_t> counts(groups_.size());
        on_ranks([&](CudaRankTimer& rank, int r) { counts[r] = count(rank); });
        int64_t own = 0;
        for (const int64_t one : counts) own += one;
        return sum_over_processes(own);
    }
    int64_t sum_over_processes(int64_t own) const {
        int64_t all = 0;
        for (const int64_t one : of_processes(own)) all += one;
        return all;
    }
    std::string digest(BenchPass pass) const;
    int64_t free_bytes() const;
    int num_sms() const;

    Device device_;
    CudaNormals normals_;
    std::optional<Group> processes_;
    BenchCase case_;
    std::vector<Group> groups_;  // the ranks of this process, and their timers
    std::vector<std::unique_ptr<CudaRankTimer>> ranks_;
    int64_t used_bytes_ = 0;
};

LayerDevice CudaTimedLayer::device() const {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, device_.index), "the device's name");
    std::array<char, 32> bus{};
    check_cuda(cudaDeviceGetPCIBusId(bus.data(), bus.size(), device_.index), "the device's bus");
    LayerDevice d;
    d.name = properties.name;
    d.pci_bus_id = bus.data();
    if (processes_) d.num_gpus = d.num_processes = processes_->size();
    return d;
}

int64_t CudaTimedLayer::free_bytes() const {
    const layer::DeviceScope scope(device_.index);
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "the device's memory");
    return static_cast<int64_t>(free);
}

int CudaTimedLayer::num_sms() const {
    int sms = 0;
    check_cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device_.index),
               "the device's multiprocessors");
    return sms;
}

void CudaTimedLayer::prepare(const BenchCase& c) {
    ranks_.clear();
    groups_.clear();
    case_ = c;
    const int64_t before = free_bytes();
    groups_ =
        processes_ ? std::vector{*processes_} : Group::cuda_virtual(c.num_ranks, device_.index);
    ranks_.resize(groups_.size());
    run_ranks(groups_, [&](const Group& group) {
        ranks_[processes_ ? 0 : group.rank()] = std::make_unique<CudaRankTimer>(c, group, normals_);
    });
    // Contexts are made by the first pass that needs them.
    run_ms(BenchPass::ForwardInference);
    run_ms(BenchPass::Forward);
    if (c.backward) run_ms(BenchPass::Backward);
    used_bytes_ = before - free_bytes();
}

// Of the digests of every token and every expert, in the order of the global batch, so the number
// of ranks does not matter.
std::string CudaTimedLayer::digest(BenchPass pass) const {
    io::Sha256 digest;
    for (int i = 0; i < CudaRankTimer::num_results(pass); ++i) {
        std::vector<std::vector<io::Sha256Digest>> of_process(1);
        for (const auto& rank : ranks_) {
            const std::vector<io::Sha256Digest> more = rank->digests(pass, i);
            of_process[0].insert(of_process[0].end(), more.begin(), more.end());
        }
        if (processes_) of_process = gather_vectors(*processes_, of_process[0], kGathering);
        for (const std::vector<io::Sha256Digest>& digests : of_process) {
            digest.update(std::as_bytes(std::span(digests)));
        }
    }
    return digest.finish_hex();
}

PassFacts CudaTimedLayer::facts(BenchPass pass) {
    const bool one_rank = case_.num_ranks == 1;
    const bool backward = pass == BenchPass::Backward;
    const plan::Problem p =
        plan::make_problem(case_.shape, case_.tuning, case_.num_ranks, 0, case_.tokens_per_rank);
    PassFacts f;
    run_ms(pass);
    f.digest = digest(pass);
    f.ring_rows = plan::ring_rows(p);
    f.max_sms = case_.tuning.max_workers > 0 ? case_.tuning.max_workers : num_sms();
    f.minibatch_rows = plan::minibatch_rows(
        p, *f.max_sms, backward ? plan::PassKind::Backward : plan::PassKind::Forward);
    f.workspace_bytes = sum([](CudaRankTimer& rank) { return rank.workspace_bytes(); });
    f.context_bytes = sum([pass](CudaRankTimer& rank) {
        return pass == BenchPass::ForwardInference ? 0 : rank.context_bytes();
    });
    f.peak_bytes = sum_over_processes(used_bytes_);
    f.link_bytes =
        one_rank ? 0 : sum([pass](CudaRankTimer& rank) { return rank.link_bytes(pass); });
    std::vector<double> copies;
    for (const auto& rank : ranks_) {
        const std::vector<double> more = rank->copy_times();
        copies.insert(copies.end(), more.begin(), more.end());
    }
    if (!copies.empty()) f.copy_median_ms = spread_of(copies).median;
    if (one_rank) f.launches = ranks_[0]->launches(pass);
    return f;
}

std::vector<TimedTask> CudaTimedLayer::trace(BenchPass pass) {
    std::vector<std::vector<TracedTask>> recorded(groups_.size());
    on_ranks([&](CudaRankTimer& rank, int r) { recorded[r] = rank.trace(pass); });
    std::vector<TimedTask> tasks;
    for (size_t r = 0; r < recorded.size(); ++r) {
        const int rank = groups_[r].rank();
        const std::vector<TimedTask> more = timed_tasks(case_, rank, pass, recorded[r]);
        tasks.insert(tasks.end(), more.begin(), more.end());
    }
    if (!processes_) return tasks;
    start_at_zero(tasks);
    const auto of_process = gather_vectors(*processes_, tasks, kGathering);
    tasks.clear();
    for (const std::vector<TimedTask>& more : of_process) {
        tasks.insert(tasks.end(), more.begin(), more.end());
    }
    return tasks;
}

}  // namespace

std::unique_ptr<TimedLayer> make_cuda_timed_layer(const Device& device) {
    const std::string why_not = why_no_cuda(device.index);
    if (!why_not.empty()) throw Error(why_not);
    return std::make_unique<CudaTimedLayer>(device);
}

std::unique_ptr<TimedLayer> make_cuda_timed_layer(const Group& processes) {
    return std::make_unique<CudaTimedLayer>(processes);
}

}  // namespace mok::cli
