#include <algorithm>
#include <cmath>

#include "device_case.h"

// The forward kernel on a GPU: against the FP64 oracle, and bit for bit between numbers of virtual
// ranks, tunings and repeats. A stand-alone program: prints a line a case and ends with 1 where one
// failed.
namespace {

using namespace mok;

int failures = 0;
int passes = 0;

void report(bool ok, const std::string& what) {
    (ok ? passes : failures) += 1;
    if (!ok) std::printf("FAIL %s\n", what.c_str());
}

std::vector<Bf16> run_case(const cli::RandomCase& c, const mok_test::DeviceOptions& options,
                           const std::string& name) {
    mok_test::DeviceCase device(c, options);
    device.run(nullptr);
    MOK_CUDA(cudaDeviceSynchronize());
    report(device.fault().empty(), name + ": " + device.fault());
    if (!device.fault().empty()) std::exit(1);
    return device.output();
}

void against_oracle(const cli::RandomCase& c, const std::vector<Bf16>& out,
                    const std::string& name) {
    std::vector<float> found(out.size());
    std::transform(out.begin(), out.end(), found.begin(), [](Bf16 v) { return to_f32(v); });
    const std::vector<int64_t> shape{c.num_tokens, c.shape.hidden};
    const auto mismatch = compare("output", found, oracle::forward(c.oracle_inputs()).out, shape);
    report(!mismatch, name + ": " + (mismatch ? mismatch->sentence() : ""));
}

// Reports the first differing element, and how many differ and are NaN.
void same_bits(const std::vector<Bf16>& a, const std::vector<Bf16>& b, int64_t hidden,
               const std::string& name) {
    int64_t differ = 0, nan = 0, first = -1;
    for (size_t i = 0; i < a.size(); ++i) {
        if (a[i].bits == b[i].bits) continue;
        if (first < 0) first = static_cast<int64_t>(i);
        ++differ;
        nan += std::isnan(to_f32(a[i])) || std::isnan(to_f32(b[i]));
    }
    char text[160] = "";
    if (first >= 0) {
        std::snprintf(text, sizeof(text), ": first [%ld,%ld] %g and %g; %ld of %zu differ, %ld NaN",
                      long(first / hidden), long(first % hidden), to_f32(a[first]),
                      to_f32(b[first]), long(differ), a.size(), long(nan));
    }
    report(differ == 0, name + text);
}

cli::CaseOptions shape(int64_t h, int64_t i, int64_t e, int64_t k, int64_t tokens) {
    cli::CaseOptions o;
    o.shape.hidden = h;
    o.shape.intermediate = i;
    o.shape.num_experts = e;
    o.shape.top_k = k;
    o.num_tokens = tokens;
    o.backward = false;
    return o;
}

void check(const cli::CaseOptions& o, const std::string& name) {
    const cli::RandomCase c = cli::random_case(o);
    const std::vector<Bf16> one = run_case(c, {}, name);
    against_oracle(c, one, name);
    for (int ranks : {2, 3, 8}) {
        mok_test::DeviceOptions d;
        d.num_ranks = ranks;
        same_bits(one, run_case(c, d, name), o.shape.hidden,
                  name + ": ranks " + std::to_string(ranks));
    }
    for (int64_t b : {128, 256}) {
        for (int64_t ring : {128, 384, 131072}) {
            mok_test::DeviceOptions d;
            d.num_ranks = 2;
            d.tuning.minibatch_rows = b;
            d.tuning.macrobatch_rows = ring;
            d.tuning.context_rows = ring == 384 ? 256 : -1;
            d.max_sms = ring == 384 ? 17 : 132;
            same_bits(one, run_case(c, d, name), o.shape.hidden,
                      name + ": b " + std::to_string(b) + " ring " + std::to_string(ring));
        }
    }
    mok_test::DeviceOptions inference;
    inference.saves_context = false;
    same_bits(one, run_case(c, inference, name), o.shape.hidden, name + ": without a context");
}

void repeat(const cli::CaseOptions& o, int times, const std::string& name) {
    const cli::RandomCase c = cli::random_case(o);
    mok_test::DeviceCase device(c, {});
    std::vector<Bf16> first;
    for (int i = 0; i < times; ++i) {
        device.run(nullptr);
        MOK_CUDA(cudaDeviceSynchronize());
        const std::vector<Bf16> out = device.output();
        if (i == 0) first = out;
        same_bits(first, out, c.shape.hidden, name + " " + std::to_string(i));
    }
}

int finish() {
    std::printf("test_forward: %d passed, %d failed\n", passes, failures);
    return failures == 0 ? 0 : 1;
}

}  // namespace

// Without arguments everything; with "quick" what a sanitizer gets through.
int main(int argc, char** argv) {
    const bool quick = argc > 1 && std::string(argv[1]) == "quick";
    check(shape(256, 128, 8, 2, 300), "small");
    cli::CaseOptions all = shape(512, 320, 8, 4, 700);
    all.biases = true;
    all.masked = 0.2;
    all.duplicates = 0.1;
    all.shape.shared_intermediate = 200;
    all.shared_weights = true;
    all.shape.activation = {7.0f, 1.702f, 1.0f};
    check(all, "everything at once");
    if (quick) return finish();
    check(shape(2880, 360, 16, 4, 500), "H 2880");
    check(shape(1408, 704, 12, 3, 333), "odd");
    check(shape(136, 96, 5, 5, 77), "tails");
    cli::CaseOptions zipf = shape(1024, 512, 32, 8, 2000);
    zipf.routing = cli::Routing::Zipf;
    check(zipf, "zipf");
    cli::CaseOptions one = shape(256, 128, 8, 2, 1500);
    one.routing = cli::Routing::OneExpert;
    check(one, "one expert");
    cli::CaseOptions none = shape(256, 128, 8, 2, 64);
    none.routing = cli::Routing::Empty;
    check(none, "empty");
    check(shape(256, 128, 3, 1, 1), "one token");

    repeat(shape(1024, 512, 16, 4, 4096), 100, "repeat");
    // Half of the tiles have a half without rows.
    repeat(shape(2048, 512, 64, 8, 1000), 400, "many tails");
    return finish();
}
