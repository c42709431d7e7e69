#include "cli/check/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cli/check/batches.h"

namespace mok::cli {
namespace {

constexpr const char* kOneRank = "1 rank's bits";
constexpr const char* kOracle = "FP64 oracle";

using Mismatches = std::vector<Mismatch>;
using Batch = std::shared_ptr<const RandomCase>;

std::vector<int64_t> range(int64_t begin, int64_t end) {
    std::vector<int64_t> all(end - begin);
    std::iota(all.begin(), all.end(), begin);
    return all;
}

class CheckList {
  public:
    explicit CheckList(const CheckOptions& o) : o_(o), most_(*std::ranges::max_element(o.ranks)) {
        batch_ = std::make_shared<const RandomCase>(random_case(everything(o.seed)));
        base_ =
            std::make_shared<const GlobalResult>(run_global(o.shape, batch_->inputs(), options(1)));
        truth_ = std::make_shared<const Truth>(truth_of(*batch_, o.device.kind));
    }

    // Masked choices, duplicate ids, biases and shared weights, all at once.
    CaseOptions everything(uint64_t seed) const {
        CaseOptions c;
        c.shape = o_.shape;
        c.num_tokens = o_.num_tokens;
        c.masked = 0.1;
        c.duplicates = 0.05;
        c.biases = true;
        c.shared_weights = true;
        c.seed = seed;
        return c;
    }

    // Rank boundaries at multiples of 128 tokens: there every bit is the same for any R.
    GlobalOptions options(int ranks) const {
        GlobalOptions g;
        g.device = o_.device;
        g.processes = o_.processes;
        g.num_ranks = ranks;
        g.tokens_per_rank = split_in_blocks(o_.num_tokens, ranks);
        g.group = o_.group;
        return g;
    }

    Trial bits_trial(std::string what, GlobalOptions options) const {
        return {std::move(what), batch_, std::move(options),
                [shape = o_.shape, base = base_](const GlobalResult& found) {
                    return compare_results(shape, found, *base);
                }};
    }

    Check against_oracle(Routing routing) const {
        Check check{fmt::format("oracle, {}", routing_name(routing)), kOracle, {}};
        Batch batch = batch_;
        std::shared_ptr<const Truth> truth = truth_;
        if (routing != Routing::Balanced) {
            CaseOptions c = everything(o_.seed);
            c.routing = routing;
            batch = std::make_shared<const RandomCase>(random_case(c));
            truth = std::make_shared<const Truth>(truth_of(*batch, o_.device.kind));
        }
        check.trials.push_back({fmt::format("R {}", most_), batch, options(most_),
                                [batch, truth, kind = o_.device.kind](const GlobalResult& found) {
                                    return compare_with_truth(*batch, *truth, found, kind);
                                }});
        return check;
    }

    // Gives every rank's `seed` a value of its own for the i-th trial.
    void disturb(GlobalOptions& g, uint64_t Diagnostics::*seed, int i) const {
        for (int r = 0; r < g.num_ranks; ++r) {
            Diagnostics d;
            d.*seed = o_.seed + 1000 * (i + 1) + r;
            g.diagnostics.push_back(d);
        }
    }

    Check repeats() const {
        Check check{"repeats under random stalls", kOneRank, {}};
        for (int i = 0; i < o_.num_repeats; ++i) {
            GlobalOptions g = options(o_.ranks[i % o_.ranks.size()]);
            // Threads of a rank; on CUDA multiprocessors, few and all of them in turn.
            g.tuning.max_workers = on_cuda() ? 24 * (i % 2) : 2;
            disturb(g, &Diagnostics::stall_seed, i);
            check.trials.push_back(
                bits_trial(fmt::format("repeat {}, R {}", i + 1, g.num_ranks), g));
        }
        return check;
    }

    Check task_orders() const {
        Check check{"random task orders", kOneRank, {}};
        const int num_orders = o_.quick ? 3 : 20;
        for (int i = 0; i < num_orders; ++i) {
            GlobalOptions g = options(o_.ranks[i % o_.ranks.size()]);
            disturb(g, &Diagnostics::order_seed, i);
            check.trials.push_back(
                bits_trial(fmt::format("order {}, R {}", i + 1, g.num_ranks), g));
        }
        return check;
    }

    Check rank_invariance() const {
        Check check{"number of ranks", kOneRank, {}};
        for (const int ranks : o_.ranks) {
            check.trials.push_back(bits_trial(fmt::format("R {}", ranks), options(ranks)));
        }
        return check;
    }

    // Rank boundaries anywhere: the shared expert's weight gradients are then added in another
    // order and are held to the oracle's bound, everything else to the bit.
    Check uneven_ranks() const {
        Check check{"ranks of any size", "1 rank's bits, oracle", {}};
        for (const int ranks : o_.ranks) {
            GlobalOptions even = options(ranks), skewed = options(ranks);
            even.tokens_per_rank.clear();
            skewed.tokens_per_rank.assign(ranks, 0);
            skewed.tokens_per_rank.front() = o_.num_tokens / 3;
            skewed.tokens_per_rank.back() += o_.num_tokens - o_.num_tokens / 3;
            for (const GlobalOptions& g : {even, skewed}) {
                const char* name = g.tokens_per_rank.empty() ? "even" : "skewed";
                check.trials.push_back({fmt::format("R {}, {} split", ranks, name), batch_, g,
                                        [this_list = *this](const GlobalResult& found) {
                                            return this_list.compare_uneven(found);
                                        }});
            }
        }
        return check;
    }

    Check sweep() const {
        Check check{"minibatch, macrobatch, context", kOneRank, {}};
        const auto add = [&](int64_t minibatch, int64_t macrobatch, int64_t context, bool keep_x) {
            GlobalOptions g = options(o_.ranks[check.trials.size() % o_.ranks.size()]);
            keep_x = keep_x && !on_cuda();
            g.tuning = {minibatch, macrobatch, context, keep_x, 0};
            check.trials.push_back(
                bits_trial(fmt::format("minibatch {}, macrobatch {}, context {}{}, R {}", minibatch,
                                       macrobatch, context, keep_x ? ", keep x" : "", g.num_ranks),
                           g));
        };
        if (o_.quick) {
            add(128, 128, 0, false);
            add(128, 256, 256, true);
            add(256, 512, -1, false);
            add(512, 1024, 128, false);
            return check;
        }
        for (const int64_t minibatch : {128, 256, 512}) {
            for (const int64_t macrobatch : {512, 1024, 131072}) {
                for (const int64_t context : {0, 256, -1}) {
                    add(minibatch, macrobatch, context, (minibatch + context) % 512 == 0);
                }
            }
        }
        add(128, 128, 0, false);
        add(128, 128, 128, true);
        return check;
    }

    Check ways() const {
        Check check{"workers, split backward, recompute, memory", kOneRank, {}};
        for (const int workers : {1, 2, 5}) {
            GlobalOptions g = options(most_);
            g.tuning.max_workers = workers;
            check.trials.push_back(bits_trial(fmt::format("{} workers", workers), g));
        }
        GlobalOptions g = options(most_);
        g.split_backward = true;
        g.tuning.context_rows = 256;
        check.trials.push_back(bits_trial("backward in two calls", g));
        g.recompute = true;
        check.trials.push_back(bits_trial("recompute", g));
        g.poison = true;
        check.trials.push_back(bits_trial("memory full of NaN", g));
        if (o_.shape.precision != Precision::BF16 && !on_cuda()) {
            g.tuning.fp8_dispatch = false;
            check.trials.push_back(bits_trial("x pulled in BF16", g));
        }
        return check;
    }

    // Case 30: other tokens dropped, permuted, replaced.
    Check batch_invariance() const {
        Check check{"rest of the batch", "bits of each token", {}};
        const int64_t n = o_.num_tokens, half = n / 2;
        const auto add = [&](const char* what, RandomCase batch,
                             const std::vector<int64_t>& tokens_of_base) {
            GlobalOptions g = options(most_);
            g.tokens_per_rank.clear();
            const auto want =
                std::make_shared<const GlobalResult>(take_rows(o_.shape, *base_, tokens_of_base));
            check.trials.push_back({what, std::make_shared<const RandomCase>(std::move(batch)), g,
                                    [shape = o_.shape, want,
                                     num = std::ssize(tokens_of_base)](const GlobalResult& found) {
                                        return compare_results(
                                            shape, take_rows(shape, found, range(0, num)), *want);
                                    }});
        };
        add("half of the tokens dropped", take_tokens(*batch_, range(half, n)), range(half, n));
        std::vector<int64_t> reversed = range(0, n);
        std::ranges::reverse(reversed);
        add("tokens in reverse", take_tokens(*batch_, reversed), reversed);
        CaseOptions other = everything(o_.seed + 1);
        other.routing = Routing::OneExpert;
        add("half of the tokens replaced", replace_tokens(*batch_, half, random_case(other)),
            range(0, half));
        return check;
    }

  private:
    bool on_cuda() const { return o_.device.kind == Device::Kind::Cuda; }

    Mismatches compare_uneven(const GlobalResult& found) const {
        GlobalResult rest = found, base = *base_;
        for (auto shared : {&GlobalResult::d_shared_gate, &GlobalResult::d_shared_up,
                            &GlobalResult::d_shared_down}) {
            (rest.*shared).clear();
            (base.*shared).clear();
        }
        Mismatches all = compare_results(o_.shape, rest, base);
        if (o_.shape.shared_intermediate == 0) return all;
        for (const Mismatch& m : compare_with_truth(*batch_, *truth_, found, o_.device.kind)) {
            if (m.tensor.starts_with("grad_shared_") && m.tensor.ends_with("_proj")) {
                all.push_back(m);
            }
        }
        return all;
    }

    CheckOptions o_;
    int most_;  // ranks
    Batch batch_;
    std::shared_ptr<const GlobalResult> base_;
    std::shared_ptr<const Truth> truth_;
};

}  // namespace

std::vector<Check> make_checks(const CheckOptions& options) {
    const CheckList list(options);
    std::vector<Check> checks{list.against_oracle(Routing::Balanced),
                              list.against_oracle(Routing::Zipf),
                              list.against_oracle(Routing::OneExpert),
                              list.against_oracle(Routing::Empty),
                              list.rank_invariance(),
                              list.uneven_ranks(),
                              list.batch_invariance(),
                              list.sweep()};
    if (options.device.kind == Device::Kind::Cpu) checks.push_back(list.task_orders());
    checks.push_back(list.ways());
    checks.push_back(list.repeats());
    return checks;
}

std::vector<std::string> left_out_checks(const CheckOptions& options) {
    std::vector<std::string> sentences;
    if (options.device.kind == Device::Kind::Cuda) {
        sentences.push_back("random task orders: only the CPU's executor can choose an order");
        sentences.push_back("keep x: the CUDA backend's contexts do not keep x");
        if (options.shape.precision != Precision::BF16) {
            sentences.push_back("x pulled in BF16: the CUDA backend's forward in FP8 pulls FP8");
        }
    }
    return sentences;
}

}  // namespace mok::cli
