#include "cli/bench_command.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/bench/bench_record.h"
#include "cli/common/model_shape.h"
#include "cli/io/atomic_file.h"
#include "cli/io/model_config.h"
#include "cli/option_types.h"

namespace mok::cli {
namespace {

struct BenchOptions {
    std::vector<std::string> models;
    std::optional<int64_t> hidden, intermediate, experts, top_k;
    std::string json;
    int threads = 0;
    BenchRequest request;
};

// The shape that the CPU backend's target is stated for.
LayerShape default_shape() {
    LayerShape shape;
    shape.hidden = 1024;
    shape.intermediate = 512;
    shape.num_experts = 16;
    shape.top_k = 4;
    return shape;
}

// What the options say replaces what the model has. Only routed experts are timed.
LayerShape with_options(LayerShape shape, const BenchOptions& o) {
    shape.hidden = o.hidden.value_or(shape.hidden);
    shape.intermediate = o.intermediate.value_or(shape.intermediate);
    shape.num_experts = o.experts.value_or(shape.num_experts);
    shape.top_k = o.top_k.value_or(shape.top_k);
    shape.shared_intermediate = 0;
    return shape;
}

std::vector<BenchRequest> requests_of(const BenchOptions& o) {
    BenchRequest request = o.request;
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    const int threads = o.threads > 0 ? o.threads : cores;
    request.num_workers = std::max(1, threads / request.num_ranks);
    std::vector<BenchRequest> requests;
    for (const std::string& model : o.models) {
        request.name = model;
        request.shape = with_options(layer_shape(io::named_model(model)), o);
        requests.push_back(request);
    }
    if (requests.empty()) {
        request.name = "default";
        request.shape = with_options(default_shape(), o);
        requests.push_back(request);
    }
    return requests;
}

void run_bench(const BenchOptions& o) {
    if (!o.json.empty()) const io::AtomicFile can_be_written(o.json);
    std::vector<PassRecord> records;
    for (const BenchRequest& request : requests_of(o)) {
        const std::vector<PassRecord> more = records_of(request, bench_layer(request));
        records.insert(records.end(), more.begin(), more.end());
    }
    std::fputs(bench_table(records).c_str(), stdout);
    if (!o.json.empty()) io::write_text_file(o.json, bench_json(records).dump(2) + "\n");
}

void add_options(CLI::App& command, BenchOptions& o) {
    BenchRequest& r = o.request;
    const CLI::Validator positive = whole_number(1, 1 << 30);
    command.add_option("--model", o.models, "models of data/shapes.json")->check(a_name());
    command.add_option("--tokens", r.tokens_per_rank, "T: tokens of every rank")->check(positive);
    command.add_option("--hidden", o.hidden, "H")->check(positive);
    command.add_option("--intermediate", o.intermediate, "I: of one expert")->check(positive);
    command.add_option("--experts", o.experts, "E: of all ranks")->check(positive);
    command.add_option("--top-k", o.top_k, "K: choices of a token")->check(positive);
    command.add_option("--ranks", r.num_ranks, "R: ranks, threads of this process")
        ->check(whole_number(1, 72));
    command.add_option("--threads", o.threads, "of all ranks together; 0: one a core")
        ->check(whole_number(0, 4096));
    command.add_flag("--backward", r.backward, "time the backward as well");
    command.add_option("--iterations", r.iterations, "timed ones, after one that is not")
        ->check(whole_number(1, 1000000));
    command.add_option("--json", o.json, "write the record to this file")->check(a_name());
}

}  // namespace

void add_bench_command(CLI::App& app) {
    CLI::App* command = app.add_subcommand(
        "bench", "Times of the passes beside the matrix library's own time for the same products");
    const auto options = std::make_shared<BenchOptions>();
    add_options(*command, *options);
    command->callback([options] { run_bench(*options); });
}

}  // namespace mok::cli
