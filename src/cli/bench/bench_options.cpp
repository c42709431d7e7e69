#include "cli/bench/bench_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <stdexcept>

#include "cli/option_types.h"
#include "cli/precision_option.h"
#include "cli/rank_place.h"
#include "plan/problem.h"

namespace mok::cli {
namespace {

constexpr const char* kOfCpu[] = {"--threads"};
constexpr const char* kOfGpu[] = {"--passes",     "--routing", "--ring-rows",   "--context-rows",
                                  "--minibatch",  "--max-sms", "--beside-copy", "--device",
                                  "--warm-up",    "--trace",   "--peers",       "--python",
                                  "--peer-script"};
constexpr int64_t kDefaultTokens = 2048;

// The shape that the CPU backend's target is stated for.
NamedShape default_shape() {
    NamedShape named{"default", {}, 512};
    named.shape.hidden = 1024;
    named.shape.intermediate = 512;
    named.shape.num_experts = 16;
    named.shape.top_k = 4;
    return named;
}

void add_shape_options(CLI::App& command, BenchOptions& o) {
    const CLI::Validator positive = whole_number(1, 1 << 30);
    auto* models = command.add_option("--model,--shape", o.models, "models of data/shapes.json")
                       ->check(a_name());
    command.add_option("--shapes", o.list, "a list: slices, sonic, fused or full")
        ->excludes(models)
        ->check(a_name());
    command.add_option("--tokens", o.tokens, "T: tokens of every rank; several: T,T,...")
        ->delimiter(',')
        ->check(positive);
    command.add_option("--hidden", o.hidden, "H")->check(positive);
    command.add_option("--intermediate", o.intermediate, "I: of one expert")->check(positive);
    command.add_option("--experts", o.experts, "E: of all ranks")->check(positive);
    command.add_option("--top-k", o.top_k, "K: choices of a token")->check(positive);
}

void add_gpu_options(CLI::App& command, BenchOptions& o) {
    command.add_option("--passes", o.passes, "cuda: of forward,inference,backward")
        ->delimiter(',')
        ->check(CLI::IsMember({"forward", "inference", "backward"}));
    command.add_option("--routing", o.routing, "cuda: balanced, zipf:EXPONENT or one-rank");
    command.add_option("--ring-rows", o.ring_rows, "cuda: B, rows of the ring")
        ->check(whole_number(1, 1 << 30));
    command
        .add_option("--context-rows", o.context_rows, "cuda: C, rows whose gate and up are kept")
        ->check(whole_number(0, 1 << 30));
    command.add_option("--minibatch", o.minibatch_rows, "cuda: b, rows of a minibatch")
        ->check(whole_number(1, 1 << 30));
    command.add_option("--max-sms", o.max_sms, "cuda: multiprocessors that a pass may use")
        ->check(whole_number(1, 4096));
    command.add_flag("--beside-copy", o.copies_beside,
                     "cuda: a copy kernel, 64 MiB by 16 blocks, beside every timed pass");
    command.add_option("--device", o.device, "cuda: the GPU")->check(whole_number(0, 1023));
    command.add_option("--warm-up", o.warm_up_s, "cuda: seconds of load before the first time")
        ->check(finite_number());
    command.add_option("--trace", o.trace, "cuda: write one traced pass to this file")
        ->check(a_name());
    const std::vector<std::string> kinds(std::begin(kPeerKinds), std::end(kPeerKinds));
    command.add_option("--peers", o.peers.kinds, "cuda: other libraries, timed in turn")
        ->delimiter(',')
        ->check(CLI::IsMember(kinds));
    command.add_option("--python", o.peers.python, "cuda: the Python that has the peers")
        ->check(a_name());
    command.add_option("--peer-script", o.peers.script, "cuda: path of bench/peers/peer.py")
        ->check(a_name());
}

}  // namespace

void add_bench_options(CLI::App& command, BenchOptions& o) {
    command.add_option("--backend", o.backend, "auto, cpu or cuda")->capture_default_str();
    add_shape_options(command, o);
    auto* ranks = command
                      .add_option("--ranks", o.num_ranks,
                                  "R: threads of this process; cuda: processes with a GPU each")
                      ->check(whole_number(1, plan::kMaxRanks));
    command.add_option("--virtual-ranks", o.num_virtual_ranks, kVirtualRanks)
        ->check(whole_number(1, plan::kMaxRanks))
        ->excludes(ranks);
    command.add_option("--threads", o.threads, "cpu: of all ranks together; 0: one a core")
        ->check(whole_number(0, 4096));
    command.add_flag("--backward", o.backward, "time the backward as well");
    add_precision_option(command, o.precision);
    command
        .add_option("--iterations", o.iterations,
                    "timed ones (cpu: 10, after one that is not; "
                    "cuda: 100)")
        ->check(whole_number(1, 1000000));
    add_gpu_options(command, o);
    command.add_option("--json", o.json, "write the record to this file")->check(a_name());
}

namespace {

// Each rank takes the GPU of its place.
void refuse_in_processes(const CLI::App& command) {
    if (command.count("--device") == 0) return;
    throw std::invalid_argument(
        "--device: expected one process (--virtual-ranks: ranks that share a GPU), found --ranks "
        "above 1");
}

}  // namespace

bool are_processes(const BenchOptions& o) {
    return o.num_ranks.value_or(1) > 1;
}

int ranks_of(const BenchOptions& o) {
    return o.num_ranks.value_or(o.num_virtual_ranks.value_or(1));
}

std::vector<NamedShape> shapes_of(const BenchOptions& o) {
    std::vector<NamedShape> shapes;
    if (!o.list.empty()) shapes = shape_list(o.list, ranks_of(o));
    for (const std::string& model : o.models) shapes.push_back(model_shape(model));
    if (shapes.empty()) shapes.push_back(default_shape());
    for (NamedShape& named : shapes) {
        LayerShape& s = named.shape;
        s.hidden = o.hidden.value_or(s.hidden);
        s.intermediate = o.intermediate.value_or(s.intermediate);
        s.num_experts = o.experts.value_or(s.num_experts);
        s.top_k = o.top_k.value_or(s.top_k);
        s.precision = precision_of(o.precision);
    }
    return shapes;
}

std::vector<BenchPass> passes_of(const BenchOptions& o) {
    std::vector<BenchPass> passes;
    for (const std::string& name : o.passes) {
        passes.push_back(name == "forward"     ? BenchPass::Forward
                         : name == "inference" ? BenchPass::ForwardInference
                                               : BenchPass::Backward);
    }
    if (passes.empty()) passes.push_back(BenchPass::Forward);
    const bool has_backward = std::ranges::count(passes, BenchPass::Backward) > 0;
    if (o.backward && !has_backward) passes.push_back(BenchPass::Backward);
    return passes;
}

std::vector<BenchCase> gpu_cases_of(const BenchOptions& o) {
    const std::vector<BenchPass> passes = passes_of(o);
    std::vector<BenchCase> cases;
    for (const NamedShape& named : shapes_of(o)) {
        std::vector<int64_t> tokens = o.tokens;
        if (tokens.empty()) tokens = {named.tokens > 0 ? named.tokens : kDefaultTokens};
        for (const int64_t t : tokens) {
            BenchCase c;
            c.name = named.name;
            c.shape = named.shape;
            c.num_ranks = ranks_of(o);
            c.tokens_per_rank = t;
            c.routing = parse_routing(o.routing);
            c.tuning.minibatch_rows = o.minibatch_rows;
            if (o.ring_rows > 0) c.tuning.macrobatch_rows = o.ring_rows;
            c.tuning.context_rows = o.context_rows;
            c.tuning.max_workers = o.max_sms;
            c.copies_beside = o.copies_beside;
            c.backward = std::ranges::count(passes, BenchPass::Backward) > 0;
            cases.push_back(std::move(c));
        }
    }
    return cases;
}

void require_options_of(const CLI::App& command, const BenchOptions& o, std::string_view backend) {
    const auto refuse = [&](const auto& options, const char* of) {
        for (const char* option : options) {
            if (command.count(option) == 0) continue;
            throw std::invalid_argument(
                fmt::format("{}: is of --backend {}, found --backend {}", option, of, backend));
        }
    };
    if (backend == "cuda") {
        refuse(kOfCpu, "cpu");
        if (are_processes(o)) refuse_in_processes(command);
    } else {
        refuse(kOfGpu, "cuda");
    }
}

}  // namespace mok::cli
