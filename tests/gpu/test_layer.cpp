#include <cstring>

#include "layer_case.h"

// The numbers of the public API on a GPU: against the FP64 oracle, bit for bit over virtual ranks
// and tunings, and for tensors of every type and stride. A stand-alone program: prints what failed
// and ends with 1 then.
namespace {

using namespace mok;
using namespace mok_test;
using cli::RandomCase;

// ---- Numbers ----------------------------------------------------------------------------------
// The shared expert's weight gradients have one rank's bits where ranks begin at multiples of 128
// tokens only; the oracle holds them otherwise.
void expect_same(const RandomCase& c, cli::GlobalResult found, cli::GlobalResult want,
                 const std::string& what) {
    for (const Mismatch& m : cli::compare_with_oracle(c, found)) {
        report(false, what + ": " + m.sentence());
    }
    for (auto shared : {&cli::GlobalResult::d_shared_gate, &cli::GlobalResult::d_shared_up,
                        &cli::GlobalResult::d_shared_down}) {
        (found.*shared).clear();
        (want.*shared).clear();
    }
    const std::vector<Mismatch> all = cli::compare_results(c.shape, found, want);
    report(all.empty(), what + (all.empty() ? "" : ": " + all.front().sentence()));
}

void check_numbers(const cli::CaseOptions& o, const std::string& name) {
    const RandomCase c = cli::random_case(o);
    const cli::GlobalResult one = cli::run_global(c.shape, c.inputs(), on_gpu(1));
    const auto run = [&c](const cli::GlobalOptions& g) {
        return cli::run_global(c.shape, c.inputs(), g);
    };
    expect_same(c, one, one, name);
    for (const int ranks : {2, 3, 8}) {
        cli::GlobalOptions g = on_gpu(ranks);
        g.poison = true;
        const cli::GlobalResult many = run(g);
        expect_same(c, many, one, name + ", ranks " + std::to_string(ranks));
        report(many.tokens_per_expert == one.tokens_per_expert, name + ": tokens per expert");
        // The CPU counts what its tasks move.
        g.device = {};
        const cli::GlobalResult cpu = run(g);
        bool links = true;
        for (int r = 0; r < ranks; ++r) {
            links = links && many.links[r].pulled == cpu.links[r].pulled &&
                    many.links[r].pushed == cpu.links[r].pushed;
        }
        report(links, name + ": bytes over each link, ranks " + std::to_string(ranks));
    }
    for (const Tuning& t : {Tuning{128, 128, 0, false, 0}, Tuning{128, 384, 256, false, 17},
                            Tuning{256, 512, -1, false, 1}, Tuning{0, 131072, 128, false, 0}}) {
        cli::GlobalOptions g = on_gpu(2, t);
        g.tokens_per_rank = {c.num_tokens / 3, c.num_tokens - c.num_tokens / 3};
        Diagnostics stalls;
        stalls.stall_seed = 5;
        g.diagnostics = {stalls, stalls};
        const std::string what = name + ", ring " + std::to_string(t.macrobatch_rows);
        expect_same(c, run(g), one, what + " under stalls");
        g.split_backward = g.recompute = true;
        expect_same(c, run(g), one, what + ", split and recomputed");
    }
    cli::GlobalOptions empty_ranks = on_gpu(3);
    empty_ranks.tokens_per_rank = {0, c.num_tokens, 0};
    expect_same(c, run(empty_ranks), one, name + ", ranks without tokens");
}

void check_no_tokens() {
    const RandomCase c = cli::random_case(rich_case(0));
    Workspace w(one_gpu(), c.shape, {}, 64);
    OnGpu t(c);
    run_step(w, t);
    synchronize(w);
    report(true, "T = 0");
}

// ---- Tensors ----------------------------------------------------------------------------------
std::vector<float> wide(const std::vector<Bf16>& t, float noise) {
    std::vector<float> out(t.size());
    cli::Random random(3);
    for (size_t i = 0; i < t.size(); ++i) {
        // Less than half a step of BF16 away, so that rounding gives t again.
        out[i] = to_f32(t[i]) * (1.0f + noise * static_cast<float>(random.uniform() - 0.5));
    }
    return out;
}

// A copy with rows `stride` apart, NaN between them.
template <class T>
std::vector<T> spread(const std::vector<T>& t, int64_t cols, int64_t stride) {
    std::vector<T> out(static_cast<int64_t>(t.size()) / cols * stride);
    std::memset(out.data(), 0xff, out.size() * sizeof(T));
    for (size_t i = 0; i < t.size(); ++i) out[i / cols * stride + i % cols] = t[i];
    return out;
}

void check_float_inputs() {
    const RandomCase c = cli::random_case(rich_case(300));
    const std::vector<Bf16> want = output_of(c, on_gpu(1));
    // Every noise stays inside the rounding interval: 2^-10 relative.
    constexpr float kNoise = 0.0009765625f;
    const std::vector<float> x = wide(c.x, kNoise), gate = wide(c.gate, kNoise),
                             up = wide(c.up, kNoise), down = wide(c.down, kNoise),
                             bias = wide(c.gate_bias, kNoise), shared = wide(c.shared_up, kNoise);
    cli::GlobalInputs in = c.inputs();
    const auto as_f32 = [](ConstTensor& t, const std::vector<float>& data) {
        t.data = data.data();
        t.dtype = DType::F32;
    };
    as_f32(in.x, x);
    for (const int ranks : {1, 2}) {
        same_bits(cli::run_global(c.shape, in, on_gpu(ranks)).output, want, "F32 x");
    }
    as_f32(in.weights.gate, gate);
    as_f32(in.weights.up, up);
    as_f32(in.weights.down, down);
    as_f32(in.weights.gate_bias, bias);
    as_f32(in.weights.shared_up, shared);
    same_bits(cli::run_global(c.shape, in, on_gpu(2)).output, want, "F32 x, weights and biases");

    OnGpu t(c);
    Workspace w(one_gpu(), c.shape, {}, c.num_tokens);
    std::vector<float> out(want.size());
    cli::DeviceTensors floats(kGpu);
    t.out = floats.output({out.data(), DType::F32, {c.num_tokens, c.shape.hidden}});
    run_once(w, t);
    synchronize(w);
    floats.fetch();
    std::vector<Bf16> rounded(out.size());
    std::transform(out.begin(), out.end(), rounded.begin(), to_bf16);
    same_bits(rounded, want, "F32 out");
}

void check_strides() {
    const RandomCase c = cli::random_case(rich_case(300));
    const std::vector<Bf16> want = output_of(c, on_gpu(1));
    const int64_t h = c.shape.hidden, i = c.shape.intermediate, k = c.shape.top_k;
    for (const int64_t pad : {8, 1}) {
        const auto x = spread(c.x, h, h + pad), gate = spread(c.gate, h, h + pad),
                   down = spread(c.down, i, i + pad), bias = spread(c.up_bias, i, i + pad),
                   shared = spread(c.shared_gate, h, h + pad);
        const auto weights = spread(c.topk_weights, k, k + pad);
        const auto ids32 = spread(c.topk_ids, k, k + pad);
        const std::vector<int64_t> ids(ids32.begin(), ids32.end());
        cli::DeviceTensors tensors(kGpu);
        OnGpu t(c);
        const auto put = [&](ConstTensor& to, const void* data, int64_t row_stride) {
            ConstTensor host = to;
            host.data = data;
            host.stride[host.dims - 2] = row_stride;
            if (host.dims == 3) host.stride[0] = host.shape[1] * row_stride;
            to = tensors.input(host);
        };
        put(t.inputs.x, x.data(), h + pad);
        put(t.inputs.topk_weights, weights.data(), k + pad);
        put(t.weights.gate, gate.data(), h + pad);
        put(t.weights.down, down.data(), i + pad);
        put(t.weights.up_bias, bias.data(), i + pad);
        put(t.weights.shared_gate, shared.data(), h + pad);
        t.ids.dtype = DType::I64;
        put(t.ids, ids.data(), k + pad);
        std::vector<Bf16> out(c.num_tokens * (h + pad), Bf16{0x1234});
        Tensor out_host(out.data(), DType::BF16, {c.num_tokens, h});
        out_host.stride[0] = h + pad;
        t.out = tensors.output(out_host);
        Workspace w(one_gpu(), c.shape, {}, c.num_tokens);
        run_once(w, t);
        synchronize(w);
        tensors.fetch();
        std::vector<Bf16> found;
        bool untouched = true;
        for (int64_t r = 0; r < c.num_tokens; ++r) {
            const auto row = out.begin() + r * (h + pad);
            found.insert(found.end(), row, row + h);
            if (r + 1 == c.num_tokens) continue;
            for (auto v = row + h; v < row + h + pad; ++v)
                untouched = untouched && v->bits == 0x1234;
        }
        same_bits(found, want, "strides, padded by " + std::to_string(pad));
        report(untouched, "what lies between the rows of out");
    }
}

void check_refused() {
    const RandomCase c = cli::random_case(rich_case(100));
    Workspace w(one_gpu(), c.shape, {}, c.num_tokens);
    OnGpu t(c);
    const Schedule schedule(w, t.ids);
    Inputs host = t.inputs;
    host.x.data = c.x.data();
    expect_throw<ShapeError>("x: expected memory of CUDA device 0, found host memory", "host x",
                             [&] { forward(w, schedule, t.weights, host, t.out); });
    expect_throw<ShapeError>("expected at most 100 tokens", "too many tokens", [&] {
        Schedule(w, ConstTensor(t.ids.data, DType::I32, {101, c.shape.top_k}));
    });
    expect_throw<ShapeError>("d_x: expected an address", "gradients out of line", [&] {
        Context context;
        forward(w, schedule, t.weights, t.inputs, t.out, context);
        InputGrads grads;
        grads.x = Tensor(static_cast<Bf16*>(t.out.data) + 1, DType::BF16, {100, c.shape.hidden});
        backward(w, schedule, t.weights, t.inputs, t.d_out, context, grads, {});
    });
    expect_throw<Error>("found no such device", "device 99",
                        [] { Group::cuda_virtual(1, 99, {}); });
    expect_throw<Error>("bytes of memory on CUDA device 0", "too little memory", [] {
        Workspace(one_gpu(), shape_case(8192, 2048, 8, 8, 1).shape, {}, 4'000'000);
    });
    expect_throw<ShapeError>("keep_x", "keep_x", [&] {
        Tuning keeps;
        keeps.keep_x = true;
        Workspace(one_gpu(), c.shape, keeps, 100);
    });
    run_once(w, t);
    synchronize(w);
    same_bits(t.output(), output_of(c, on_gpu(1)), "after refused calls");
}

}  // namespace

int main() {
    return run_gpu_checks(
        "test_layer",
        {{"no tokens", check_no_tokens},
         {"refused calls", check_refused},
         {"F32 inputs", check_float_inputs},
         {"strides", check_strides},
         {"small", [] { check_numbers(shape_case(256, 128, 8, 2, 300), "small"); }},
         {"everything at once", [] { check_numbers(rich_case(700), "everything at once"); }},
         {"tails", [] { check_numbers(shape_case(136, 96, 5, 5, 77), "tails"); }}});
}
