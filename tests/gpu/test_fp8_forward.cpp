#include <limits>

#include "fp8_case.h"

// A layer in fp8_block on a GPU, forward: the quantisers' bytes against the CPU's; outputs against
// the FP64 oracle that quantises at the same points and against the CPU backend, and bit for bit
// over virtual ranks, tunings, repeats and memory of NaN; the context against the CPU's. A
// stand-alone program: prints what failed and ends with 1 then.
namespace {

using namespace mok;
using namespace mok_test;
using cli::RandomCase;

cli::CaseOptions in_fp8(cli::CaseOptions o) {
    o.shape.precision = Precision::Fp8Block;
    o.backward = false;
    return o;
}

// ---- Quantisers -------------------------------------------------------------------------------
void check_quantisers() {
    for (const bool any_bits : {false, true}) {
        check_rows(Precision::Fp8Block, 5, 128, any_bits);
        check_rows(Precision::Fp8Block, 77, 136, any_bits);
        check_rows(Precision::Fp8Block, 300, 7168, any_bits);
        check_weights(Precision::Fp8Block, 256, 128, DType::BF16, any_bits);
        check_weights(Precision::Fp8Block, 136, 96, DType::BF16, any_bits);
        check_weights(Precision::Fp8Block, 2880, 360, DType::BF16, any_bits);
    }
    check_weights(Precision::Fp8Block, 512, 320, DType::F32, false);
}

// ---- Outputs ----------------------------------------------------------------------------------
void check_numbers(const cli::CaseOptions& options, const std::string& name) {
    const RandomCase c = cli::random_case(in_fp8(options));
    const auto run = [&c](const cli::GlobalOptions& g) {
        return cli::run_global(c.shape, c.inputs(), g);
    };
    const cli::GlobalResult one = run(on_gpu(1));
    for (const Mismatch& m : cli::compare_with_oracle(c, one, kGpu.kind)) {
        report(false, name + ": " + m.sentence());
    }
    // Both within the oracle's bounds, the CPU by FP32 sums, which are much closer.
    cli::GlobalOptions on_cpu;
    const double from_cpu = distance(one.output, run(on_cpu).output);
    std::printf("  %s: distance from the CPU backend %.2e\n", name.c_str(), from_cpu);
    report(from_cpu < 1.2e-2, name + ": distance from the CPU backend " + std::to_string(from_cpu));
    for (const int ranks : {2, 3, 4, 8}) {
        cli::GlobalOptions g = on_gpu(ranks);
        g.poison = true;
        const cli::GlobalResult many = run(g);
        const std::string what = name + ", ranks " + std::to_string(ranks);
        same_bits(many.output, one.output, what);
        g.device = {};
        const cli::GlobalResult cpu = run(g);
        bool links = true;
        for (int r = 0; r < ranks; ++r) {
            links = links && many.links[r].pulled == cpu.links[r].pulled &&
                    many.links[r].pushed == cpu.links[r].pushed;
        }
        report(links, what + ": bytes over each link");
    }
    for (const Tuning& t : {Tuning{128, 128, 0, false, 0}, Tuning{128, 384, 256, false, 17},
                            Tuning{256, 512, -1, false, 1}, Tuning{0, 131072, 128, false, 0}}) {
        cli::GlobalOptions g = on_gpu(2, t);
        g.tokens_per_rank = {c.num_tokens / 3, c.num_tokens - c.num_tokens / 3};
        g.poison = true;
        Diagnostics stalls;
        stalls.stall_seed = 5;
        g.diagnostics = {stalls, stalls};
        same_bits(run(g).output, one.output,
                  name + ", ring " + std::to_string(t.macrobatch_rows) + " under stalls");
    }
    cli::GlobalOptions empty_ranks = on_gpu(3);
    empty_ranks.tokens_per_rank = {0, c.num_tokens, 0};
    same_bits(run(empty_ranks).output, one.output, name + ", ranks without tokens");
}

// ---- Context ----------------------------------------------------------------------------------
// Gate or up as a context has them, dequantised: [rows, padded].
struct Saved {
    std::vector<float> values, scales;
};

// Scales of the CPU's by row, of the GPU's by tile.
Saved saved_rows(const std::vector<std::byte>& context, const plan::Fp8RowsMap& map, int64_t rows,
                 int64_t cols, bool by_tile) {
    const int64_t padded = plan::fp8_padded(cols), blocks = padded / 128;
    const auto* elements = reinterpret_cast<const E4m3*>(context.data() + map.elements);
    const auto* scales = reinterpret_cast<const float*>(context.data() + map.scales);
    Saved saved{std::vector<float>(rows * padded), std::vector<float>(rows * padded)};
    for (int64_t i = 0; i < rows * padded; ++i) {
        const int64_t row = i / padded, block = i % padded / 128;
        const int64_t at =
            by_tile ? (row / 128 * blocks + block) * 128 + row % 128 : row * blocks + block;
        saved.scales[i] = scales[at];
        saved.values[i] = to_f32(elements[i]) * scales[at];
    }
    return saved;
}

template <class T>
int64_t count_unlike(const Saved& found, const Saved& want, int64_t first, int64_t num,
                     T&& unlike) {
    int64_t count = 0;
    for (int64_t i = first; i < first + num; ++i) {
        count += unlike(found.values[i], want.values[i], want.scales[i]);
    }
    return count;
}

// Real rows of the GPU's context beside the CPU's: E4M3 numbers of sums that differ by the tensor
// cores' roundings (docs/precision.md), so equal but for some that lie beside a middle, and near
// zero, where E4M3's steps are smaller than the roundings.
void check_context(const cli::CaseOptions& options, const std::string& name) {
    const RandomCase c = cli::random_case(in_fp8(options));
    std::vector<std::byte> host;
    const Kept cpu = context_of(c, false, false, [&host](int64_t bytes) {
        host.resize(bytes);
        return host.data();
    });
    DeviceMemory block(0);
    const auto on_device = [&block](int64_t bytes) {
        block = DeviceMemory(bytes);
        return block.at<void>();
    };
    const Kept gpu = context_of(c, true, false, on_device);
    const Kept again = context_of(c, true, true, on_device);

    const RealRows real(c);
    const int64_t cols = c.shape.intermediate;
    const int64_t padded = plan::fp8_padded(cols);
    const std::pair<const char*, plan::Fp8RowsMap plan::ContextMap::*> parts[] = {
        {"gate", &plan::ContextMap::gate8}, {"up", &plan::ContextMap::up8}};
    for (const auto& [part, map] : parts) {
        const Saved want = saved_rows(cpu.bytes, cpu.map.*map, real.num_slots, cols, false);
        const Saved found = saved_rows(gpu.bytes, gpu.map.*map, real.num_slots, cols, true);
        const Saved repeated = saved_rows(again.bytes, again.map.*map, real.num_slots, cols, true);
        int64_t other = 0, far = 0, crossed = 0, differs = 0, all = 0;
        const float limit = c.shape.activation.limit;
        for (const int64_t slot : real.slots) {
            const int64_t first = slot * padded;
            all += cols;
            differs += std::memcmp(&found.values[first], &repeated.values[first], cols * 4) != 0;
            other += count_unlike(found, want, first, cols, [](float a, float b, float s) {
                return std::abs(a - b) > 1e-5f * std::abs(b) + 1e-6f * s;
            });
            far += count_unlike(found, want, first, cols, [](float a, float b, float s) {
                return !(std::abs(a - b) <= 0.126f * std::abs(b) + 0.5f * s);
            });
            crossed += count_unlike(found, want, first, cols, [limit](float a, float b, float s) {
                // A sum beside the limit may be on either side; far from it not.
                return (a > limit) != (b > limit) && std::abs(b - limit) > 0.13f * limit + s;
            });
        }
        std::printf(
            "  %s, saved %s: %.3f %% of %ld elements are other E4M3 numbers than the CPU's\n",
            name.c_str(), part, 100.0 * double(other) / double(all), long(all));
        report(double(other) < 0.02 * double(all), name + ": saved " + part + ", equal elements");
        report(far == 0, name + ": saved " + part + ", " + std::to_string(far) +
                             " elements are more than a neighbour away");
        report(crossed == 0, name + ": saved " + part + " across the limit");
        report(differs == 0, name + ": recomputed " + part + " has the forward's bits");
    }
}

// All that there is to it on a GPU with block scales.
void check_refused_for_block_scales() {
    LayerShape shape = shape_case(256, 128, 8, 2, 0).shape;
    shape.precision = Precision::Fp8Block;
    expect_throw<ShapeError>("expected bf16 or mxfp8", "fp8_block",
                             [&] { Workspace(one_gpu(), shape, {}, 64); });
}

// ---- The rest ---------------------------------------------------------------------------------
void check_refused() {
    LayerShape shape = shape_case(256, 128, 8, 2, 0).shape;
    shape.precision = Precision::Fp8Block;
    Tuning bf16_dispatch;
    bf16_dispatch.fp8_dispatch = false;
    expect_throw<ShapeError>("tuning.fp8_dispatch", "dispatch in BF16",
                             [&] { Workspace(one_gpu(), shape, bf16_dispatch, 64); });
}

void repeat(const cli::CaseOptions& options, int times, const std::string& name) {
    const RandomCase c = cli::random_case(in_fp8(options));
    Workspace w(one_gpu(), c.shape, {}, std::max<int64_t>(c.num_tokens, 64));
    cli::DeviceTensors tensors(kGpu);
    const cli::GlobalInputs all = c.inputs();
    Weights weights = tensors.input(all.weights);
    Fp8Weights fp8(w);
    quantize_weights(w, weights, fp8);
    weights.fp8 = &fp8;
    const Inputs inputs = tensors.input(Inputs{all.x, all.topk_weights, all.shared_weights});
    std::vector<Bf16> out(c.num_tokens * c.shape.hidden), first;
    const Tensor output =
        tensors.output(Tensor(out.data(), DType::BF16, {c.num_tokens, c.shape.hidden}));
    const Schedule schedule(w, tensors.input(all.topk_ids));
    for (int i = 0; i < times; ++i) {
        Context context;
        if (i % 2 == 0) {
            forward(w, schedule, weights, inputs, output, context);
        } else {
            forward(w, schedule, weights, inputs, output);
        }
        synchronize(w);
        tensors.fetch();
        if (i == 0) first = out;
        same_bits(out, first, name + " " + std::to_string(i));
    }
}

cli::CaseOptions routed(cli::CaseOptions o, cli::Routing routing) {
    o.routing = routing;
    return o;
}
void check_zipf() {
    check_numbers(routed(shape_case(1024, 512, 32, 8, 2000), cli::Routing::Zipf), "zipf");
}
void check_one_expert() {
    check_numbers(routed(shape_case(256, 128, 8, 2, 1500), cli::Routing::OneExpert), "one expert");
}
void check_empty() {
    check_numbers(routed(shape_case(256, 128, 8, 2, 64), cli::Routing::Empty), "empty");
}

}  // namespace

// Without arguments everything; with "quick" what a sanitizer gets through.
int main(int argc, char** argv) {
    if (has_block_scales()) {
        return run_gpu_checks("test_fp8_forward",
                              {{"refused for block scales", check_refused_for_block_scales}});
    }
    const bool quick = argc > 1 && std::string(argv[1]) == "quick";
    if (quick) {
        return run_gpu_checks(
            "test_fp8_forward",
            {{"quantisers", check_quantisers},
             {"small", [] { check_numbers(shape_case(256, 128, 8, 2, 300), "small"); }}});
    }
    return run_gpu_checks(
        "test_fp8_forward",
        {{"quantisers", check_quantisers},
         {"no tokens", [] { repeat(rich_case(0), 2, "no tokens"); }},
         {"refused calls", check_refused},
         {"small", [] { check_numbers(shape_case(256, 128, 8, 2, 300), "small"); }},
         {"everything at once", [] { check_numbers(rich_case(700), "everything at once"); }},
         {"tails", [] { check_numbers(shape_case(136, 96, 5, 5, 77), "tails"); }},
         {"H 2880", [] { check_numbers(shape_case(2880, 360, 16, 4, 500), "H 2880"); }},
         {"zipf", check_zipf},
         {"one expert", check_one_expert},
         {"empty", check_empty},
         {"one token", [] { check_numbers(shape_case(256, 128, 3, 1, 1), "one token"); }},
         {"context", [] { check_context(shape_case(1024, 512, 8, 2, 700), "context"); }},
         {"context with limits", [] { check_context(rich_case(700), "context with limits"); }},
         {"repeats", [] { repeat(shape_case(1024, 512, 16, 4, 4096), 50, "repeat"); }},
         {"many tails", [] { repeat(shape_case(2048, 512, 64, 8, 1000), 200, "many tails"); }}});
}
