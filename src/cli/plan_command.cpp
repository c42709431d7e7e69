#include "cli/plan_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <stdexcept>

#include "cli/common/model_shape.h"
#include "cli/io/atomic_file.h"
#include "cli/io/model_config.h"
#include "cli/io/output_name.h"
#include "cli/option_types.h"
#include "cli/plan/report.h"
#include "cli/plan/timeline_svg.h"
#include "cli/precision_option.h"

namespace mok::cli {
namespace {

struct PlanOptions {
    PlanRequest request;
    std::string model, config, svg, pass = "forward", precision = "bf16";
    bool json = false, links = false;
    SimulationRates rates;
};

io::ModelShape chosen_model(const PlanOptions& o) {
    if (o.model.empty() == o.config.empty()) {
        throw std::invalid_argument("plan: expected one of --model and --config, found " +
                                    std::string(o.model.empty() ? "none" : "both"));
    }
    return o.config.empty() ? io::named_model(o.model) : io::read_model_config(o.config);
}

std::string svg_of(const PlanReport& report, const PlanOptions& o) {
    const PlanRequest& r = report.request;
    const plan::PassKind kind =
        o.pass == "forward" ? plan::PassKind::Forward : plan::PassKind::Backward;
    const Traffic& traffic = report.routings.front().traffic;
    const plan::Problem p = r.problem(traffic.busiest_rank, kind);
    const GlobalIds ids = global_ids(r, traffic.routing);
    TableMemory memory;
    const plan::Pass pass{kind, p, memory.build(p, ids)};
    TimelinePicture picture;
    picture.num_sms = r.num_sms;
    picture.comm_workers = o.rates.comm_workers;
    picture.title = fmt::format("{} {}: {} tokens on each of {} rank{}, {} routing, rank {}",
                                r.model, o.pass, r.tokens_per_rank, r.num_ranks,
                                r.num_ranks == 1 ? "" : "s", routing_name(traffic.routing), p.rank);
    picture.rates = fmt::format(
        "Simulated, not measured: tiles at {:g} TFLOP/s over {} SMs, rows of other ranks at {:g} "
        "GB/s and own rows at {:g} GB/s over {} workers. Minibatch {} rows, ring {} rows. One "
        "colour a "
        "minibatch.",
        o.rates.tflops, r.num_sms, o.rates.link_gbs, o.rates.local_gbs, o.rates.comm_workers,
        p.minibatch_rows, plan::ring_rows(p));
    return timeline_svg(simulate(pass, r.num_sms, o.rates), picture);
}

void run_plan(PlanOptions& o) {
    io::refuse_input_as_output(o.svg, {o.config});
    const io::ModelShape model = chosen_model(o);
    o.request.model = model.name;
    o.request.shape = layer_shape(model);
    o.request.shape.precision = precision_of(o.precision);
    if (!o.svg.empty()) const io::AtomicFile can_be_written(o.svg);
    const PlanReport report = plan_report(o.request);
    const std::string text = o.json ? report_json(report, o.links) : report_text(report, o.links);
    std::fputs(text.c_str(), stdout);
    if (!o.svg.empty()) io::write_text_file(o.svg, svg_of(report, o));
}

void add_options(CLI::App& command, PlanOptions& o) {
    PlanRequest& r = o.request;
    command.add_option("--model", o.model, "a model of data/shapes.json")->check(a_name());
    command.add_option("--config", o.config, "a Hugging Face config.json")->check(a_name());
    command.add_option("--tokens-per-rank", r.tokens_per_rank, "T: tokens of every rank")
        ->required()
        ->check(whole_number(0, INT32_MAX));
    command.add_option("--ranks", r.num_ranks, "R: ranks, 1 to 72")
        ->required()
        ->check(whole_number(1, plan::kMaxRanks));
    command.add_option("--sms", r.num_sms, "N: SMs of a rank, its compute workers")
        ->required()
        ->check(whole_number(1, 4096));
    command.add_option("--layers", r.num_layers, "L: layers whose contexts are kept")
        ->check(whole_number(1, 100000));
    command.add_option("--in-flight", r.in_flight, "M: forwards of a layer before its backward")
        ->check(whole_number(1, 100000));
    command
        .add_option("--minibatch", r.tuning.minibatch_rows,
                    "b: rows, a multiple of 128; 0: four full waves per phase of a forward, two of "
                    "a backward")
        ->check(whole_number());
    command.add_option("--macrobatch", r.tuning.macrobatch_rows, "B: rows of the ring")
        ->check(whole_number());
    command.add_option("--context-rows", r.tuning.context_rows, "C: rows kept; -1: every row")
        ->check(whole_number());
    add_precision_option(command, o.precision);
    command.add_flag("--keep-x", r.tuning.keep_x, "the context keeps x as well");
    command.add_option("--seed", r.seed, "of the random routings")
        ->check(whole_number(0, INT64_MAX));
    command.add_flag("--links", o.links, "print the bytes of every link, not only a summary");
    command.add_flag("--json", o.json, "print JSON");
    command.add_option("--svg", o.svg, "draw the busiest rank's program as a timeline")
        ->check(a_name());
    command.add_option("--pass", o.pass, "the pass that is drawn")
        ->check(CLI::IsMember({"forward", "backward"}));
    const CLI::Validator rate = number_above(0.0);
    command.add_option("--tflops", o.rates.tflops, "drawn: TFLOP/s of a rank")->check(rate);
    command.add_option("--link-gbs", o.rates.link_gbs, "drawn: GB/s with other ranks")->check(rate);
    command.add_option("--local-gbs", o.rates.local_gbs, "drawn: GB/s of a rank's own rows")
        ->check(rate);
    command.add_option("--comm-workers", o.rates.comm_workers, "drawn: communication workers")
        ->check(whole_number(1, 4096));
}

}  // namespace

void add_plan_command(CLI::App& app) {
    CLI::App* command = app.add_subcommand(
        "plan", "What the passes of a layer will do: rows, memory, tasks, bytes over each link");
    const auto options = std::make_shared<PlanOptions>();
    add_options(*command, *options);
    command->callback([options] { run_plan(*options); });
}

}  // namespace mok::cli
