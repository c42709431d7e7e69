#pragma once

#include <cmath>
#include <cstring>

#include "cpu/fp8_rows.h"
#include "cpu/fp8_weights.h"
#include "kernels/quantise.h"
#include "layer/state.h"
#include "layer_case.h"

// What the GPU tests of both FP8 recipes share: the quantisers' bytes against the CPU's, and a
// context's bytes.
namespace mok_test {

using namespace mok;

// Whether the GPU's tensor cores have block scales: it multiplies mxfp8 with these, and has no
// fp8_block.
inline bool has_block_scales() {
    int major = 0;
    MOK_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, kGpu.index));
    return major == 10;
}

// ---- Quantisers -------------------------------------------------------------------------------
// Values of blocks whose sizes range over all of BF16's, or of any bits at all.
inline std::vector<Bf16> values(int64_t count, bool any_bits, uint32_t seed) {
    std::vector<Bf16> v(count);
    uint32_t random = seed, top = 0;
    for (int64_t i = 0; i < count; ++i) {
        random = random * 1664525u + 1013904223u;
        const uint32_t bits = random >> 8;
        if (i % 128 == 0) top = bits % 250u;
        const uint32_t spread = (bits & 0x807fu) | (top + (bits >> 16) % 5u) << 7;
        v[i].bits = static_cast<uint16_t>(any_bits ? bits : spread);
    }
    return v;
}

inline void same_bytes(const std::vector<uint8_t>& found, const std::vector<uint8_t>& want,
                       const std::string& what) {
    int64_t differ = 0, first = -1;
    for (size_t i = 0; i < want.size(); ++i) {
        if (found[i] == want[i]) continue;
        if (first < 0) first = static_cast<int64_t>(i);
        ++differ;
    }
    report(differ == 0, what + ": " + std::to_string(differ) + " of " +
                            std::to_string(want.size()) + " bytes differ, the first at " +
                            std::to_string(first));
}

inline void check_rows(Precision precision, int64_t rows, int64_t cols, bool any_bits) {
    const std::vector<Bf16> from = values(rows * cols, any_bits, 7);
    const int64_t padded = plan::fp8_padded(cols), scale_bytes = plan::fp8_scale_bytes(cols);
    std::vector<uint8_t> elements(rows * padded), scales(rows * scale_bytes);
    for (int64_t r = 0; r < rows; ++r) {
        cpu::quantise_row(precision, from.data() + r * cols, cols,
                          {reinterpret_cast<E4m3*>(elements.data() + r * padded),
                           reinterpret_cast<std::byte*>(scales.data() + r * scale_bytes)});
    }
    const DeviceMemory source(from), e(rows * padded), s(rows * scale_bytes);
    MOK_CUDA(kernels::launch_quantise_rows(
        {source.at<Bf16>(), rows, cols, precision, e.at<uint8_t>(), s.at<void>()}, nullptr));
    std::vector<uint8_t> found(elements.size()), found_scales(scales.size());
    MOK_CUDA(cudaMemcpy(found.data(), e.at<char>(), found.size(), cudaMemcpyDeviceToHost));
    MOK_CUDA(cudaMemcpy(found_scales.data(), s.at<char>(), scales.size(), cudaMemcpyDeviceToHost));
    const std::string name = "rows " + std::to_string(rows) + " x " + std::to_string(cols) +
                             (any_bits ? " of any bits" : "");
    same_bytes(found, elements, name + ", elements");
    same_bytes(found_scales, scales, name + ", scales");
}

inline std::vector<uint8_t> bytes_of(const std::byte* block, int64_t at, int64_t bytes) {
    const auto* begin = reinterpret_cast<const uint8_t*>(block + at);
    return {begin, begin + bytes};
}

inline void check_weights(Precision precision, int64_t h, int64_t i, DType dtype, bool any_bits) {
    LayerShape shape = shape_case(h, i, 3, 1, 0).shape;
    shape.precision = precision;
    Workspace w(one_gpu(), shape, {}, 64);
    const plan::Fp8WeightsMap map = plan::fp8_weights_map(w.impl().problem);
    const std::vector<Bf16> gate = values(3 * i * h, any_bits, 1), up = values(3 * i * h, false, 2),
                            down = values(3 * i * h, any_bits, 3);
    std::vector<float> gate_f32(gate.size());
    // FP32 that rounds to the BF16 values.
    for (size_t k = 0; k < gate.size(); ++k) gate_f32[k] = to_f32(gate[k]);
    Weights host;
    host.gate = {gate.data(), DType::BF16, {3, i, h}};
    if (dtype == DType::F32) host.gate = {gate_f32.data(), DType::F32, {3, i, h}};
    host.up = {up.data(), DType::BF16, {3, i, h}};
    host.down = {down.data(), DType::BF16, {3, h, i}};
    std::vector<std::byte> want(map.total), found(map.total);
    cpu::quantise_experts(w.impl().problem, host, want.data());

    cli::DeviceTensors tensors(kGpu);
    Fp8Weights fp8(w);
    MOK_CUDA(cudaMemset(fp8.data(), 0x5a, fp8.bytes()));
    quantize_weights(w, tensors.input(host), fp8);
    synchronize(w);
    MOK_CUDA(cudaMemcpy(found.data(), fp8.data(), map.total, cudaMemcpyDeviceToHost));
    const std::pair<const char*, const plan::Fp8MatrixMap*> matrices[] = {
        {"gate", &map.gate},     {"up", &map.up},     {"down", &map.down},
        {"gate_t", &map.gate_t}, {"up_t", &map.up_t}, {"down_t", &map.down_t}};
    for (const auto& [name, m] : matrices) {
        const std::string what = std::string(name) + " of H " + std::to_string(h) + ", I " +
                                 std::to_string(i) + (any_bits ? ", any bits" : "");
        const int64_t elements = 3 * m->expert_elements, scales = 3 * m->expert_scales;
        same_bytes(bytes_of(found.data(), m->elements, elements),
                   bytes_of(want.data(), m->elements, elements), what + ", elements");
        same_bytes(bytes_of(found.data(), m->scales, scales),
                   bytes_of(want.data(), m->scales, scales), what + ", scales");
    }
}

// ---- Outputs and contexts ---
inline double distance(const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double want = to_f32(b[i]), d = to_f32(a[i]) - want;
        error += d * d;
        norm += want * want;
    }
    return norm > 0.0 ? std::sqrt(error / norm) : std::sqrt(error);
}

struct Kept {
    std::vector<std::byte> bytes;
    plan::ContextMap map{};
};

// The forward of a rank that has the whole case into a context of the caller's.
template <class Bytes>
Kept context_of(const cli::RandomCase& c, bool on_device, bool again, Bytes&& bytes_at) {
    const Group group = on_device ? one_gpu() : Group::in_process(1).front();
    Workspace w(group, c.shape, {}, c.num_tokens);
    cli::DeviceTensors tensors(group.device());
    const cli::GlobalInputs all = c.inputs();
    Weights weights = tensors.input(all.weights);
    Fp8Weights fp8(w);
    quantize_weights(w, weights, fp8);
    weights.fp8 = &fp8;
    const Inputs inputs = tensors.input(Inputs{all.x, all.topk_weights, all.shared_weights});
    std::vector<Bf16> out(c.num_tokens * c.shape.hidden);
    const Tensor output =
        tensors.output(Tensor(out.data(), DType::BF16, {c.num_tokens, c.shape.hidden}));
    const Schedule schedule(w, tensors.input(all.topk_ids));
    const int64_t bytes = w.context_bytes(c.num_tokens);
    Kept kept{std::vector<std::byte>(bytes), {}};
    void* const block = bytes_at(bytes);
    Context context(Block{block, bytes});
    if (again) {
        recompute(w, schedule, weights, inputs, context);
    } else {
        forward(w, schedule, weights, inputs, output, context);
    }
    synchronize(w);
    kept.map = context.impl().map;
    if (on_device) {
        MOK_CUDA(cudaMemcpy(kept.bytes.data(), block, bytes, cudaMemcpyDeviceToHost));
    } else {
        std::memcpy(kept.bytes.data(), block, bytes);
    }
    return kept;
}

// Slots of a case's rows where one rank has all.
struct RealRows {
    std::vector<int64_t> slots;
    int64_t num_slots;  // with padding

    explicit RealRows(const cli::RandomCase& c) {
        plan::Problem p{};
        p.num_ranks = 1;
        p.hidden = static_cast<int32_t>(c.shape.hidden);
        p.num_experts = static_cast<int32_t>(c.shape.num_experts);
        p.top_k = static_cast<int32_t>(c.shape.top_k);
        p.max_tokens = p.num_tokens = static_cast<int32_t>(c.num_tokens);
        p.macrobatch_rows = 131072;
        std::vector<int32_t> memory(plan::route_table_ints(p));
        plan::RouteTable table = plan::route_table_at(p, memory.data());
        const int32_t* ids = c.topk_ids.data();
        plan::build_route_table(p, &ids, &p.num_tokens, table);
        num_slots = plan::num_slots(table);
        for (int64_t slot = 0; slot < num_slots; ++slot) {
            if (table.slot_home[slot] >= 0) slots.push_back(slot);
        }
    }
};

// ---- Both passes ------------------------------------------------------------------------------
// The bits of every tensor. The shared expert's weight gradients have one rank's where ranks begin
// at multiples of 128 tokens only.
inline void expect_bits(const cli::RandomCase& c, cli::GlobalResult found, cli::GlobalResult want,
                        const std::string& what) {
    for (auto shared : {&cli::GlobalResult::d_shared_gate, &cli::GlobalResult::d_shared_up,
                        &cli::GlobalResult::d_shared_down}) {
        (found.*shared).clear();
        (want.*shared).clear();
    }
    const std::vector<Mismatch> all = cli::compare_results(c.shape, found, want);
    report(all.empty(), what + (all.empty() ? "" : ": " + all.front().sentence()));
}

// A case in FP8 on a GPU: against the FP64 oracle that quantises at the same points, in Fp8Block
// with the tensor cores' sums, and, within `bound` of the norm, against the CPU backend; bit for
// bit over virtual ranks, tunings, split and recomputed passes, stalls and memory of NaN; bytes
// over links as on the CPU.
inline void check_fp8_numbers(const cli::CaseOptions& options, const std::string& name,
                              double bound) {
    const cli::RandomCase c = cli::random_case(options);
    const cli::Truth truth = cli::truth_of(c, kGpu.kind);
    const auto run = [&c](const cli::GlobalOptions& g) {
        return cli::run_global(c.shape, c.inputs(), g);
    };
    const cli::GlobalResult one = run(on_gpu(1));
    for (const Mismatch& m : cli::compare_with_truth(c, truth, one, kGpu.kind)) {
        report(false, name + ": " + m.sentence());
    }
    cli::GlobalOptions on_cpu;
    const cli::GlobalResult cpu = run(on_cpu);
    const double of_output = distance(one.output, cpu.output), of_d_x = distance(one.d_x, cpu.d_x);
    std::printf("  %s: distance from the CPU backend %.2e, d_x %.2e\n", name.c_str(), of_output,
                of_d_x);
    // Of a few tokens one number that is rounded to another neighbour is a large part.
    const double most = c.num_tokens < 16 ? 0.125 : bound;
    report(of_output < most && of_d_x < most, name + ": distance from the CPU backend");
    for (const int ranks : {2, 3, 8}) {
        cli::GlobalOptions g = on_gpu(ranks);
        g.poison = true;
        const cli::GlobalResult many = run(g);
        const std::string what = name + ", ranks " + std::to_string(ranks);
        expect_bits(c, many, one, what);
        if (ranks != 3) continue;
        // The shared expert's, which have bits of their own.
        for (const Mismatch& m : cli::compare_with_truth(c, truth, many, kGpu.kind)) {
            report(false, what + ": " + m.sentence());
        }
        g.device = {};
        const cli::GlobalResult of_cpu = run(g);
        bool links = true;
        for (int r = 0; r < ranks; ++r) {
            links = links && many.links[r].pulled == of_cpu.links[r].pulled &&
                    many.links[r].pushed == of_cpu.links[r].pushed;
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
        const std::string what = name + ", ring " + std::to_string(t.macrobatch_rows);
        expect_bits(c, run(g), one, what + " under stalls");
        g.split_backward = g.recompute = true;
        expect_bits(c, run(g), one, what + ", split and recomputed");
    }
    cli::GlobalOptions empty_ranks = on_gpu(3);
    empty_ranks.tokens_per_rank = {0, c.num_tokens, 0};
    expect_bits(c, run(empty_ranks), one, name + ", ranks without tokens");
}

}  // namespace mok_test
