#include "cli/bench/gpu_record.h"

#include <fmt/format.h>

namespace mok::cli {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json value_or_null(const std::optional<T>& value) {
    return value.has_value() ? Json(*value) : Json(nullptr);
}

Json record_json(const GpuRecord& r) {
    const PassFacts& f = r.facts;
    return {{"pass", pass_name(r.pass)},
            {"shape", r.shape_name},
            {"ranks", r.num_ranks},
            {"tokens_per_rank", r.tokens_per_rank},
            {"experts", r.shape.num_experts},
            {"top_k", r.shape.top_k},
            {"hidden", r.shape.hidden},
            {"intermediate", r.shape.intermediate},
            {"routing", r.routing},
            {"precision", precision_name(r.shape.precision)},
            {"weight_gradients", r.pass == BenchPass::Backward ? Json("f32") : Json()},
            {"iterations", r.iterations},
            {"median_ms", r.layer.median},
            {"min_ms", r.layer.min},
            {"max_ms", r.layer.max},
            {"tflops", r.tflops()},
            {"peer", value_or_null(r.peer)},
            {"peer_median_ms", value_or_null(r.peer_median_ms)},
            {"peer_peak_bytes", value_or_null(r.peer_peak_bytes)},
            {"peer_saved_bytes", value_or_null(r.peer_saved_bytes)},
            {"gemm_only_median_ms", value_or_null(r.gemm_only_ms)},
            {"gemm_only_own_counts_ms", value_or_null(r.own_counts_ms)},
            {"table_ms", value_or_null(r.table_ms)},
            {"launches", value_or_null(f.launches)},
            {"ring_rows", value_or_null(f.ring_rows)},
            {"minibatch_rows", value_or_null(f.minibatch_rows)},
            {"max_sms", value_or_null(f.max_sms)},
            {"workspace_bytes", value_or_null(f.workspace_bytes)},
            {"context_bytes", value_or_null(f.context_bytes)},
            {"peak_bytes", value_or_null(f.peak_bytes)},
            {"link_bytes", value_or_null(f.link_bytes)},
            {"copy_beside_median_ms", value_or_null(f.copy_median_ms)},
            {"digest", f.digest}};
}

std::string ms_text(const std::optional<double>& ms) {
    return ms.has_value() ? fmt::format("{:.3f}", *ms) : "-";
}

std::string ratio_text(const std::optional<double>& ms, double layer_ms) {
    return ms.has_value() ? fmt::format("{:.2f}", *ms / layer_ms) : "-";
}

}  // namespace

double GpuRecord::tflops() const {
    const double forward = 6.0 * static_cast<double>(tokens_per_rank) * num_ranks *
                           static_cast<double>(shape.top_k) * static_cast<double>(shape.hidden) *
                           static_cast<double>(shape.intermediate);
    return (pass == BenchPass::Backward ? 2.0 : 1.0) * forward / layer.median * 1e-9;
}

Json gpu_bench_json(const GpuRun& run, const std::vector<GpuRecord>& records) {
    const RunIdentity who = run_identity();
    Json json = {{"command", who.command},
                 {"commit", who.commit},
                 {"device", run.device.name},
                 {"driver", value_or_null(run.driver)},
                 {"nccl", value_or_null(run.nccl)},
                 {"torch", value_or_null(run.torch)},
                 {"date", who.date},
                 {"gpus", run.device.num_gpus},
                 {"processes", run.device.num_processes},
                 {"virtual", run.is_virtual},
                 {"sm_clock_mhz", value_or_null(run.sm_clock_mhz)},
                 {"power_w", value_or_null(run.power_w)},
                 {"records", Json::array()}};
    for (const GpuRecord& r : records) json["records"].push_back(record_json(r));
    return json;
}

std::string gpu_bench_table(const GpuRun& run, const std::vector<GpuRecord>& records) {
    std::string text = run.device.name;
    if (run.driver) text += ", driver " + *run.driver;
    if (run.torch) text += ", torch " + *run.torch;
    if (run.sm_clock_mhz) text += fmt::format(", SM clock {:.0f} MHz", *run.sm_clock_mhz);
    if (run.power_w) text += fmt::format(", {:.0f} W", *run.power_w);
    text += fmt::format(
        "\n\n{:<23}{:<18}{:<11}{:>6}{:>8}{:>11}{:>10}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}  {}\n",
        "shape", "pass", "precision", "ranks", "tokens", "routing", "median ms", "min ms",
        "TFLOP/s", "table ms", "gemm ms", "peer ms", "gemm/us", "peer/us", "peer");
    for (const GpuRecord& r : records) {
        text += fmt::format(
            "{:<23}{:<18}{:<11}{:>6}{:>8}{:>11}{:>10.3f}{:>9.3f}{:>9.0f}{:>9}{:>9}{:>9}{:>9}{:>9}  "
            "{}\n",
            r.shape_name, pass_name(r.pass), precision_name(r.shape.precision), r.num_ranks,
            r.tokens_per_rank, r.routing, r.layer.median, r.layer.min, r.tflops(),
            ms_text(r.table_ms), ms_text(r.gemm_only_ms), ms_text(r.peer_median_ms),
            ratio_text(r.gemm_only_ms, r.layer.median),
            ratio_text(r.peer_median_ms, r.layer.median), r.peer.value_or("-"));
        if (r.facts.copy_median_ms) {
            text += fmt::format("    beside a copy of 64 MiB that took {:.3f} ms (median)\n",
                                *r.facts.copy_median_ms);
        }
    }
    return text;
}

}  // namespace mok::cli
