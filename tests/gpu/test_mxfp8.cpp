#include <array>

#include "fp8_case.h"

// A layer in mxfp8 on a GPU, both passes: the quantisers' bytes against the CPU's; outputs and
// gradients against the FP64 oracle that quantises at the same points, and bit for bit over virtual
// ranks, tunings, split and recomputed passes, stalls and memory of NaN; outputs and the context
// against the CPU backend. A stand-alone program: prints what failed and ends with 1 then.
namespace {

using namespace mok;
using namespace mok_test;
using cli::RandomCase;

constexpr Precision kMx = Precision::Mxfp8;

cli::CaseOptions in_mxfp8(cli::CaseOptions o) {
    o.shape.precision = kMx;
    return o;
}

// ---- Weights ----------------------------------------------------------------------------------
// The BF16 numbers that the passes multiply with against the CPU's bytes, dequantised.
void check_operands(int64_t h, int64_t i) {
    LayerShape shape = shape_case(h, i, 3, 1, 0).shape;
    shape.precision = kMx;
    Workspace w(one_gpu(), shape, {}, 64);
    const std::vector<Bf16> matrices[] = {values(3 * i * h, false, 1), values(3 * i * h, true, 2),
                                          values(3 * i * h, false, 3)};
    Weights host;
    host.gate = {matrices[0].data(), DType::BF16, {3, i, h}};
    host.up = {matrices[1].data(), DType::BF16, {3, i, h}};
    host.down = {matrices[2].data(), DType::BF16, {3, h, i}};
    cli::DeviceTensors tensors(kGpu);
    Fp8Weights fp8(w);
    quantize_weights(w, tensors.input(host), fp8);
    // Bytes from elsewhere: the operands are made of them.
    MOK_CUDA(cudaMemset(fp8.impl().operands.data(), 0xff, fp8.impl().operands.bytes()));
    fp8.set_filled();
    synchronize(w);
    std::vector<Bf16> found(fp8.impl().operands.bytes() / 2);
    MOK_CUDA(cudaMemcpy(found.data(), fp8.impl().operands.data(), found.size() * 2,
                        cudaMemcpyDeviceToHost));
    // Six matrices, the three along rows first, each at a multiple of 256 bytes.
    const int64_t area = 3 * h * i, pitch = (area * 2 + 255) / 256 * 128;
    int64_t wrong = 0;
    for (int m = 0; m < 6; ++m) {
        const std::vector<Bf16>& from = matrices[m % 3];
        const int64_t rows = m % 3 == 2 ? h : i, cols = m % 3 == 2 ? i : h;
        for (int64_t at = 0; at < area; ++at) {
            const int64_t expert = at / (rows * cols), row = at / cols % rows, col = at % cols;
            const int64_t base = expert * rows * cols;
            const bool along_rows = m < 3;
            const int64_t begin = (along_rows ? col : row) / 32 * 32;
            const int64_t end = std::min<int64_t>(begin + 32, along_rows ? cols : rows);
            Amax amax;
            for (int64_t k = begin; k < end; ++k) {
                amax = max_with(amax, from[base + (along_rows ? row * cols + k : k * cols + col)]);
            }
            const Ue8m0 scale = Mxfp8::scale_of(amax);
            const Bf16 want = dequantise(Mxfp8::element_of(from[at], scale), scale);
            wrong += found[m * pitch + at].bits != want.bits;
        }
    }
    report(wrong == 0, "operands of H " + std::to_string(h) + ", I " + std::to_string(i) + ": " +
                           std::to_string(wrong) + " are wrong");
}

void check_quantisers() {
    for (const bool any_bits : {false, true}) {
        check_rows(kMx, 5, 128, any_bits);
        check_rows(kMx, 77, 136, any_bits);
        check_rows(kMx, 300, 7168, any_bits);
        check_weights(kMx, 256, 128, DType::BF16, any_bits);
        check_weights(kMx, 136, 96, DType::BF16, any_bits);
        check_weights(kMx, 720, 360, DType::BF16, any_bits);
    }
    check_weights(kMx, 512, 320, DType::F32, false);
    if (has_block_scales()) return;
    check_operands(256, 128);
    check_operands(136, 96);
}

// ---- Numbers ----------------------------------------------------------------------------------
void check_numbers(const cli::CaseOptions& options, const std::string& name) {
    check_fp8_numbers(in_mxfp8(options), name, 4e-3);
}

// ---- Context ----------------------------------------------------------------------------------
// Gate and up that a forward has saved are E4M3 numbers of sums that differ by FP32's roundings
// from the CPU's: nearly all the same bytes, in the same places. A recompute leaves the forward's.
void check_context(const cli::CaseOptions& options, const std::string& name) {
    cli::CaseOptions forward_only = in_mxfp8(options);
    forward_only.backward = false;
    const RandomCase c = cli::random_case(forward_only);
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
    const int64_t cols = c.shape.intermediate, padded = plan::fp8_padded(cols);
    const std::pair<const char*, plan::Fp8RowsMap plan::ContextMap::*> parts[] = {
        {"gate", &plan::ContextMap::gate8}, {"up", &plan::ContextMap::up8}};
    for (const auto& [part, map] : parts) {
        const auto bytes_at = [&](const Kept& kept, int64_t slot, int64_t col) {
            const plan::Fp8RowsMap& at = kept.map.*map;
            const int64_t scale = scale_tile_index(slot, col / 32, padded / 32);
            return std::array<std::byte, 2>{kept.bytes[at.elements + slot * padded + col],
                                            kept.bytes[at.scales + scale]};
        };
        int64_t all = 0, other = 0, differs = 0;
        for (const int64_t slot : real.slots) {
            for (int64_t col = 0; col < cols; ++col, ++all) {
                other += bytes_at(gpu, slot, col) != bytes_at(cpu, slot, col);
                differs += bytes_at(gpu, slot, col) != bytes_at(again, slot, col);
            }
        }
        std::printf("  %s, saved %s: %ld of %ld elements are other than the CPU's\n", name.c_str(),
                    part, long(other), long(all));
        report(double(other) < 1e-3 * double(all), name + ": saved " + part);
        report(differs == 0, name + ": recomputed " + part + " has the forward's bits");
    }
}

// ---- The rest ---------------------------------------------------------------------------------
void check_refused() {
    LayerShape shape = shape_case(256, 128, 8, 2, 0).shape;
    shape.precision = kMx;
    Tuning bf16_dispatch;
    bf16_dispatch.fp8_dispatch = false;
    expect_throw<ShapeError>("tuning.fp8_dispatch", "dispatch in BF16",
                             [&] { Workspace(one_gpu(), shape, bf16_dispatch, 64); });
    if (!has_block_scales()) return;
    shape.precision = Precision::Fp8Block;
    expect_throw<ShapeError>("expected bf16 or mxfp8", "fp8_block",
                             [&] { Workspace(one_gpu(), shape, {}, 64); });
}

void check_repeats() {
    const RandomCase c = cli::random_case(in_mxfp8(shape_case(1024, 512, 16, 4, 1024)));
    cli::GlobalOptions g = on_gpu(1);
    const cli::GlobalResult first = cli::run_global(c.shape, c.inputs(), g);
    g.poison = true;
    for (int i = 0; i < 5; ++i) {
        const std::vector<Mismatch> all =
            cli::compare_results(c.shape, cli::run_global(c.shape, c.inputs(), g), first);
        report(all.empty(),
               "repeat " + std::to_string(i) + (all.empty() ? "" : ": " + all.front().sentence()));
    }
}

cli::CaseOptions routed(cli::CaseOptions o, cli::Routing routing) {
    o.routing = routing;
    return o;
}
void check_zipf() {
    check_numbers(routed(shape_case(256, 384, 32, 8, 300), cli::Routing::Zipf), "zipf");
}
void check_one_expert() {
    check_numbers(routed(shape_case(256, 128, 8, 2, 300), cli::Routing::OneExpert), "one expert");
}
void check_empty() {
    check_numbers(routed(shape_case(256, 128, 8, 2, 64), cli::Routing::Empty), "empty");
}

}  // namespace

// Without arguments everything; with "quick" what a sanitizer gets through.
int main(int argc, char** argv) {
    const bool quick = argc > 1 && std::string(argv[1]) == "quick";
    if (quick) {
        return run_gpu_checks(
            "test_mxfp8",
            {{"quantisers", check_quantisers},
             {"small", [] { check_numbers(shape_case(256, 128, 8, 2, 200), "small"); }}});
    }
    return run_gpu_checks(
        "test_mxfp8",
        {{"quantisers", check_quantisers},
         {"refused calls", check_refused},
         {"context", [] { check_context(shape_case(1024, 512, 8, 2, 700), "context"); }},
         {"context with limits", [] { check_context(rich_case(700), "context with limits"); }},
         {"small", [] { check_numbers(shape_case(256, 128, 8, 2, 200), "small"); }},
         {"one token", [] { check_numbers(shape_case(256, 128, 3, 1, 1), "one token"); }},
         {"tails", [] { check_numbers(shape_case(136, 96, 5, 5, 77), "tails"); }},
         {"everything at once", [] { check_numbers(rich_case(400), "everything at once"); }},
         {"H 2880", [] { check_numbers(shape_case(2880, 72, 6, 2, 100), "H 2880"); }},
         {"zipf", check_zipf},
         {"one expert", check_one_expert},
         {"empty", check_empty},
         {"repeats", check_repeats}});
}
