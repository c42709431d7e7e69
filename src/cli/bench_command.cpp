#include "cli/bench_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/backend.h"
#include "cli/bench/bench_charts.h"
#include "cli/bench/bench_options.h"
#include "cli/bench/bench_record.h"
#include "cli/bench/cuda_timed_layer.h"
#include "cli/bench/gpu_bench_run.h"
#include "cli/bench/led_layer.h"
#include "cli/bench/trace_picture.h"
#include "cli/io/atomic_file.h"
#include "cli/io/output_name.h"
#include "cli/option_types.h"
#include "cli/rank_place.h"
#include "plan/problem.h"

namespace mok::cli {
namespace {

constexpr int kCpuIterations = 10;
constexpr int64_t kCpuTokens = 512;

std::vector<BenchRequest> cpu_requests_of(const BenchOptions& o) {
    BenchRequest request;
    request.num_ranks = ranks_of(o);
    request.backward = o.backward;
    request.iterations = o.iterations.value_or(kCpuIterations);
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    const int threads = o.threads > 0 ? o.threads : cores;
    request.num_workers = std::max(1, threads / request.num_ranks);
    std::vector<BenchRequest> requests;
    for (const NamedShape& named : shapes_of(o)) {
        request.name = named.name;
        request.shape = named.shape;
        std::vector<int64_t> tokens = o.tokens;
        if (tokens.empty()) tokens = {named.tokens > 0 ? named.tokens : kCpuTokens};
        for (const int64_t t : tokens) {
            request.tokens_per_rank = t;
            requests.push_back(request);
        }
    }
    return requests;
}

void run_cpu_bench(const BenchOptions& o) {
    if (!o.json.empty()) const io::AtomicFile can_be_written(o.json);
    std::vector<PassRecord> records;
    for (const BenchRequest& request : cpu_requests_of(o)) {
        const std::vector<PassRecord> more = records_of(request, bench_layer(request));
        records.insert(records.end(), more.begin(), more.end());
    }
    std::fputs(bench_table(records).c_str(), stdout);
    if (!o.json.empty()) io::write_text_file(o.json, bench_json(records).dump(2) + "\n");
}

// Rank 0 conducts, prints and writes; the others follow.
void run_bench_as_rank(const BenchOptions& o) {
    GroupOptions options;
    options.warn_after = options.timeout;  // other libraries take their time
    const Group group = join_ranks(options);
    run_rank(group, [&] {
        const std::unique_ptr<TimedLayer> layer = make_cuda_timed_layer(group);
        if (group.rank() != 0) return follow(group, *layer, gpu_cases_of(o));
        LedLayer led(group, *layer);
        run_gpu_bench(o, led);
    });
}

void run_bench(const CLI::App& command, BenchOptions o) {
    const BackendChoice choice = choose_rank_backend(o.backend);
    const std::optional<int> launched = launched_ranks();
    if (launched) {
        if (o.num_virtual_ranks) refuse_launched("--virtual-ranks", *launched);
        require_launched("--ranks", o.num_ranks.value_or(*launched), *launched);
        o.num_ranks = launched;
    }
    if (choice.backend == Backend::Cpu && o.num_virtual_ranks) refuse_virtual_ranks_on_cpu();
    require_options_of(command, o, backend_name(choice.backend));
    if (choice.backend == Backend::Cpu) {
        run_cpu_bench(o);
    } else if (launched) {
        run_bench_as_rank(o);
    } else if (are_processes(o)) {
        gpu_cases_of(o);  // what they would refuse is refused once
        run_as_processes(*o.num_ranks);
    } else {
        const Device device{Device::Kind::Cuda, o.device};
        run_gpu_bench(o, *make_cuda_timed_layer(device));
    }
}

constexpr const char* kTraceChart = "trace";

struct ChartOptions {
    std::string kind, svg;
    std::vector<std::filesystem::path> records;
    std::optional<int> rank;  // of a trace
};

std::string chart_svg(const ChartOptions& o) {
    if (o.kind != kTraceChart) {
        if (o.rank) throw std::invalid_argument("--rank: expected chart trace, found " + o.kind);
        return io::line_chart_svg(bench_chart(o.kind, read_records(o.records)));
    }
    if (o.records.size() != 1) {
        throw std::invalid_argument(
            fmt::format("chart trace: expected one file, found {}", o.records.size()));
    }
    return trace_svg(o.records.front(), o.rank.value_or(0));
}

// The options of a measurement stand before the subcommand, where it does not see them.
void refuse_options_of_bench(const CLI::App& bench) {
    for (const CLI::Option* option : bench.get_options()) {
        if (option->count() == 0) continue;
        throw std::invalid_argument(fmt::format(
            "{}: expected none of mok bench's own options beside chart", option->get_name()));
    }
}

void add_chart_command(CLI::App& bench) {
    CLI::App* command = bench.add_subcommand(
        "chart", "A picture of recorded benchmarks (--json); measures nothing");
    const auto o = std::make_shared<ChartOptions>();
    command
        ->add_option("kind", o->kind,
                     "minibatch, speedup-tokens, speedup-skew, memory-skew or trace")
        ->required()
        ->check(CLI::IsMember(
            {"minibatch", "speedup-tokens", "speedup-skew", "memory-skew", kTraceChart}));
    command
        ->add_option("records", o->records,
                     "files that mok bench --json wrote; for trace the one that --trace wrote")
        ->required();
    command->add_option("--rank", o->rank, "trace: whose part (0)")
        ->check(whole_number(0, plan::kMaxRanks - 1));
    command->add_option("--svg", o->svg, "write the picture to this file")
        ->required()
        ->check(a_name());
    command->callback([&bench, o] {
        refuse_options_of_bench(bench);
        io::refuse_input_as_output(o->svg, o->records);
        io::write_text_file(o->svg, chart_svg(*o));
    });
}

}  // namespace

void add_bench_command(CLI::App& app) {
    CLI::App* command = app.add_subcommand(
        "bench", "Times of the passes beside other libraries' times for the same work");
    const auto options = std::make_shared<BenchOptions>();
    add_bench_options(*command, *options);
    add_chart_command(*command);
    command->callback([command, options] {
        if (command->get_subcommands().empty()) run_bench(*command, *options);
    });
}

}  // namespace mok::cli
