#include <cmath>
#include <string>

#include "backward_case.h"

// The backward kernel on a GPU: against the FP64 oracle, and bit for bit between numbers of virtual
// ranks, tunings, modes and repeats. A stand-alone program: prints a line for what failed and ends
// with 1 where anything did.
namespace {

using namespace mok;
using mok_test::BackwardCase;
using mok_test::BackwardOptions;

int failures = 0;
int passes = 0;

void report(const std::vector<Mismatch>& mismatches, const std::string& name) {
    (mismatches.empty() ? passes : failures) += 1;
    for (const Mismatch& m : mismatches) {
        std::printf("FAIL %s: %s\n", name.c_str(), m.sentence().c_str());
    }
    std::fflush(stdout);
}

cli::GlobalResult run(const cli::RandomCase& c, const BackwardOptions& options) {
    BackwardCase backward(c, options);
    backward.run();
    return backward.result();
}

// Whether the sums over each rank's tokens, chained, go on where one rank's would stand.
bool chain_is_exact(int64_t tokens, int ranks) {
    cli::GlobalOptions split;
    split.num_ranks = ranks;
    int64_t first = 0;
    for (const int64_t n : cli::split_tokens(tokens, split)) {
        if (first % 128 != 0) return false;
        first += n;
    }
    return true;
}

class Checker {
  public:
    Checker(const cli::CaseOptions& o, std::string name)
        : case_(cli::random_case(o)), name_(std::move(name)), truth_(cli::truth_of(case_)) {
        base_ = run(case_, {});
        report(cli::compare_with_truth(case_, truth_, base_), name_);
    }

    // The same bits as with one rank and the default tuning.
    void same(const BackwardOptions& options, const std::string& what) {
        cli::GlobalResult found = run(case_, options);
        if (!chain_is_exact(case_.num_tokens, options.device.num_ranks)) {
            report(cli::compare_with_truth(case_, truth_, found), name_ + ", " + what);
            found.d_shared_gate = base_.d_shared_gate;
            found.d_shared_up = base_.d_shared_up;
            found.d_shared_down = base_.d_shared_down;
        }
        report(cli::compare_results(case_.shape, base_, found), name_ + ", " + what);
    }

    // new = round(old + g) of every routed weight, or round(g).
    void stored(GradMode mode, bool bf16, const std::string& what) {
        BackwardOptions options;
        options.mode = mode;
        options.bf16_grads = bf16;
        options.old_gradient = mode == GradMode::Overwrite ? NAN : 0.75f;
        options.device.tuning.macrobatch_rows = 256;
        options.device.tuning.minibatch_rows = 128;
        cli::GlobalResult want = base_;
        for (std::vector<float>* t : {&want.d_gate, &want.d_up, &want.d_down, &want.d_gate_bias,
                                      &want.d_up_bias, &want.d_down_bias}) {
            for (float& v : *t) {
                if (mode == GradMode::Accumulate) v = options.old_gradient + v;
                if (bf16) v = to_f32(to_bf16(v));
            }
        }
        report(cli::compare_results(case_.shape, want, run(case_, options)), name_ + ", " + what);
    }

    // A chain goes on from the old sum: no simple expectation but that zero changes nothing.
    void chained_from_zero() {
        BackwardOptions options;
        options.mode = GradMode::Chain;
        report(cli::compare_results(case_.shape, base_, run(case_, options)), name_ + ", chain");
    }

    // One old sum, one chain, however many pieces the ring cuts an expert into.
    void chained_through_pieces() {
        BackwardOptions whole;
        whole.mode = GradMode::Chain;
        whole.old_gradient = 0.75f;
        const cli::GlobalResult want = run(case_, whole);
        for (const int64_t ring : {128, 256}) {
            BackwardOptions cut = whole;
            cut.device.tuning.macrobatch_rows = ring;
            cut.device.tuning.minibatch_rows = 128;
            report(cli::compare_results(case_.shape, want, run(case_, cut)),
                   name_ + ", chain through a ring of " + std::to_string(ring));
        }
    }

    void all_variants() {
        for (const int ranks : {2, 3, 8}) {
            BackwardOptions o;
            o.device.num_ranks = ranks;
            o.split = ranks == 3;
            same(o, "ranks " + std::to_string(ranks) + (o.split ? " split" : ""));
        }
        for (const int64_t ring : {128, 384}) {
            for (const int64_t context : {0, 256, 131072}) {
                BackwardOptions o;
                o.device.num_ranks = ring == 384 ? 2 : 1;
                o.device.tuning.minibatch_rows = context == 256 ? 256 : 128;
                if (ring == 128) o.device.tuning.minibatch_rows = 128;
                o.device.tuning.macrobatch_rows = ring;
                o.device.tuning.context_rows = context;
                o.device.tuning.keep_x = context == 256;
                o.device.max_sms = ring == 384 ? 17 : 132;
                const std::string what =
                    "ring " + std::to_string(ring) + " context " + std::to_string(context);
                same(o, what);
                o.split = true;
                same(o, what + " split");
            }
        }
        BackwardOptions kept;
        kept.device.tuning.keep_x = true;
        same(kept, "keep_x");
        kept.split = true;
        kept.device.num_ranks = 2;
        same(kept, "keep_x split");
        BackwardOptions recomputed;
        recomputed.recompute = true;
        recomputed.f32_d_x = true;
        recomputed.device.num_ranks = 2;
        same(recomputed, "recomputed, FP32 d_x");
        stored(GradMode::Overwrite, true, "BF16");
        stored(GradMode::Accumulate, false, "accumulated");
        stored(GradMode::Accumulate, true, "accumulated BF16");
        chained_from_zero();
        chained_through_pieces();
    }

  private:
    cli::RandomCase case_;
    std::string name_;
    cli::Truth truth_;
    cli::GlobalResult base_;
};

// A pass again and again, without clearing anything but the signals.
void repeats(const cli::CaseOptions& o, int count) {
    const cli::RandomCase c = cli::random_case(o);
    BackwardCase backward(c, {});
    backward.run();
    const cli::GlobalResult first = backward.result();
    for (int i = 0; i < count; ++i) {
        backward.run_backward(nullptr);
        MOK_CUDA(cudaDeviceSynchronize());
        report(cli::compare_results(c.shape, first, backward.result()),
               "repeat " + std::to_string(i));
    }
}

cli::CaseOptions shape(int64_t h, int64_t i, int64_t e, int64_t k, int64_t tokens) {
    cli::CaseOptions o;
    o.shape.hidden = h;
    o.shape.intermediate = i;
    o.shape.num_experts = e;
    o.shape.top_k = k;
    o.num_tokens = tokens;
    return o;
}

cli::CaseOptions everything() {
    cli::CaseOptions o = shape(512, 320, 8, 4, 768);
    o.biases = true;
    o.masked = 0.2;
    o.duplicates = 0.1;
    o.shape.shared_intermediate = 200;
    o.shared_weights = true;
    o.shape.activation = {7.0f, 1.702f, 1.0f};
    return o;
}

int finish() {
    std::printf("test_backward: %d passed, %d failed\n", passes, failures);
    return failures == 0 ? 0 : 1;
}

}  // namespace

// Without arguments everything; with "quick" what a sanitizer gets through.
int main(int argc, char** argv) {
    if (argc > 1 && std::string(argv[1]) == "quick") {
        Checker(shape(256, 128, 4, 2, 150), "small");
        cli::CaseOptions o = everything();
        o.num_tokens = 200;
        Checker all(o, "everything at once");
        BackwardOptions ring;
        ring.device.num_ranks = 2;
        ring.device.tuning.macrobatch_rows = 256;
        ring.device.tuning.minibatch_rows = 128;
        ring.device.tuning.context_rows = 128;
        ring.device.tuning.keep_x = true;
        ring.split = true;
        all.same(ring, "ring, split");
        all.stored(GradMode::Accumulate, true, "accumulated BF16");
        return finish();
    }
    repeats(shape(1024, 512, 16, 4, 2048), 20);
    Checker(shape(256, 128, 8, 2, 300), "small").all_variants();
    Checker(everything(), "everything at once").all_variants();
    cli::CaseOptions tails = shape(136, 96, 5, 5, 77);
    tails.shape.shared_intermediate = 72;
    Checker(tails, "tails").all_variants();
    Checker(shape(2880, 360, 16, 4, 300), "H 2880");
    Checker(shape(1408, 704, 12, 3, 333), "odd");
    Checker(shape(648, 264, 7, 3, 129), "odder").all_variants();
    cli::CaseOptions zipf = shape(512, 256, 32, 8, 900);
    zipf.routing = cli::Routing::Zipf;
    Checker(zipf, "zipf").all_variants();
    cli::CaseOptions one = shape(256, 128, 8, 2, 700);
    one.routing = cli::Routing::OneExpert;
    Checker(one, "one expert").all_variants();
    cli::CaseOptions none = shape(256, 128, 8, 2, 64);
    none.routing = cli::Routing::Empty;
    Checker(none, "empty").all_variants();
    Checker(shape(256, 128, 3, 1, 1), "one token").all_variants();
    return finish();
}
