#include "fp8_case.h"

// A layer in fp8_block on a GPU, both passes: outputs and gradients against the FP64 oracle that
// quantises at the same points and against the CPU backend, and bit for bit over virtual ranks,
// tunings, split and recomputed passes, stalls and memory of NaN. A stand-alone program: prints
// what failed and ends with 1 then.
namespace {

using namespace mok;
using namespace mok_test;

void check_numbers(cli::CaseOptions o, const std::string& name) {
    o.shape.precision = Precision::Fp8Block;
    check_fp8_numbers(o, name, 1.2e-2);
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
// Many minibatches in one macrobatch, weight gradients over more blocks of slots than there are
// stages, two units an operand in a row of I: as a large layer has them.
void check_many_minibatches() {
    cli::CaseOptions o = shape_case(128, 1152, 3, 2, 1200);
    o.shape.precision = Precision::Fp8Block;
    const cli::RandomCase c = cli::random_case(o);
    const cli::GlobalResult found =
        cli::run_global(c.shape, c.inputs(), on_gpu(1, Tuning{128, 131072, -1, false, 0}));
    for (const Mismatch& m : cli::compare_with_oracle(c, found, kGpu.kind)) {
        report(false, "many minibatches: " + m.sentence());
    }
    const cli::GlobalResult one = cli::run_global(c.shape, c.inputs(), on_gpu(1));
    expect_bits(c, found, one, "many minibatches");
}
void check_empty() {
    check_numbers(routed(shape_case(256, 128, 8, 2, 64), cli::Routing::Empty), "empty");
}

}  // namespace

// Without arguments everything; with "quick" what a sanitizer gets through; with a check's name
// that.
int main(int argc, char** argv) {
    if (has_block_scales()) {
        std::printf("test_fp8_backward: nothing to do, GPUs with block scales have no fp8_block\n");
        return 0;
    }
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // what came before a hang is to be seen
    const bool quick = argc > 1 && std::string(argv[1]) == "quick";
    if (quick) {
        return run_gpu_checks(
            "test_fp8_backward",
            {{"small", [] { check_numbers(shape_case(256, 128, 8, 2, 200), "small"); }}});
    }
    return run_gpu_checks(
        "test_fp8_backward",
        {{"small", [] { check_numbers(shape_case(256, 128, 8, 2, 200), "small"); }},
         {"one token", [] { check_numbers(shape_case(256, 128, 3, 1, 1), "one token"); }},
         {"tails", [] { check_numbers(shape_case(136, 96, 5, 5, 77), "tails"); }},
         {"everything at once", [] { check_numbers(rich_case(400), "everything at once"); }},
         {"H 2880", [] { check_numbers(shape_case(2880, 72, 6, 2, 100), "H 2880"); }},
         {"zipf", check_zipf},
         {"one expert", check_one_expert},
         {"many minibatches", check_many_minibatches},
         {"empty", check_empty}},
        argc > 1 ? argv[1] : "");
}
