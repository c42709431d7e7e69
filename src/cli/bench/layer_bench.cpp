#include "cli/bench/layer_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include "cli/bench/library_products.h"
#include "cli/common/memory_limit.h"
#include "cli/common/random_case.h"
#include "cli/common/rank_threads.h"
#include "cli/io/sha256.h"
#include "plan/make_problem.h"
#include "plan/memory_map.h"
#include "plan/validate.h"

namespace mok::cli {
namespace {

using Clock = std::chrono::steady_clock;

double ms_between(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double, std::milli>(end - begin).count();
}

// Weights in BF16 and, for the library, in FP32; gradients of both; windows and workspaces.
void require_possible(const BenchRequest& r) {
    const LayerShape& s = r.shape;
    std::string broken;
    for (const std::string& rule : plan::problems_of(s, Tuning(), r.num_ranks, r.tokens_per_rank)) {
        broken += (broken.empty() ? "" : "; ") + rule;
    }
    if (!broken.empty()) throw ShapeError(broken);
    const double weights = 3.0 * static_cast<double>(s.num_experts) *
                           static_cast<double>(s.hidden) * static_cast<double>(s.intermediate);
    double bytes = weights * (r.backward ? 2 + 4 + 4 + 4 : 2 + 4);
    for (int rank = 0; rank < r.num_ranks; ++rank) {
        const plan::Problem p =
            plan::make_problem(s, Tuning(), r.num_ranks, rank, r.tokens_per_rank);
        bytes += static_cast<double>(plan::window_map(p).total + plan::workspace_map(p).total +
                                     plan::fp8_weights_map(p).total);
    }
    require_memory(bytes,
                   fmt::format("bench of {} with {} experts", r.name, s.num_experts).c_str());
}

template <class T>
ConstTensor rows_of(const std::vector<T>& rows, DType dtype, int64_t first, int64_t num,
                    int64_t cols) {
    return {rows.data() + first * cols, dtype, {num, cols}};
}

// One rank's layer, its tensors and its results.
class RankBench {
  public:
    RankBench(const BenchRequest& request, const RandomCase& c, const Group& group)
        : group_(group), workspace_(group, c.shape, tuning(request), request.tokens_per_rank) {
        const int64_t h = c.shape.hidden, i = c.shape.intermediate, k = c.shape.top_k;
        const int64_t tokens = request.tokens_per_rank, first = group.rank() * tokens;
        const int64_t expert = workspace_.first_expert(), e = workspace_.num_local_experts();
        ids_ = rows_of(c.topk_ids, DType::I32, first, tokens, k);
        inputs_.x = rows_of(c.x, DType::BF16, first, tokens, h);
        inputs_.topk_weights = rows_of(c.topk_weights, DType::F32, first, tokens, k);
        weights_.gate = {c.gate.data() + expert * i * h, DType::BF16, {e, i, h}};
        weights_.up = {c.up.data() + expert * i * h, DType::BF16, {e, i, h}};
        weights_.down = {c.down.data() + expert * h * i, DType::BF16, {e, h, i}};
        if (c.shape.precision != Precision::BF16) {
            quantize_weights(workspace_, weights_, fp8_.emplace(workspace_));
            weights_.fp8 = &*fp8_;
        }
        out_.resize(tokens * h);
        if (!request.backward) return;
        d_out_ = rows_of(c.grad_output, DType::BF16, first, tokens, h);
        d_x_.resize(tokens * h);
        d_weights_.resize(tokens * k);
        for (std::vector<float>* grad : {&d_gate_, &d_up_, &d_down_}) grad->resize(e * i * h);
        input_grads_.x = Tensor(d_x_.data(), DType::BF16, {tokens, h});
        input_grads_.topk_weights = Tensor(d_weights_.data(), DType::F32, {tokens, k});
        weight_grads_.gate = Tensor(d_gate_.data(), DType::F32, {e, i, h});
        weight_grads_.up = Tensor(d_up_.data(), DType::F32, {e, i, h});
        weight_grads_.down = Tensor(d_down_.data(), DType::F32, {e, h, i});
    }

    void forward() {
        meet(group_, "barrier before a timed pass");
        const int64_t moved = bytes_moved();
        const Clock::time_point begin = Clock::now();
        schedule_.emplace(workspace_, ids_);
        const Clock::time_point scheduled = Clock::now();
        const int64_t tokens = inputs_.x.shape[0], hidden = inputs_.x.shape[1];
        mok::forward(workspace_, *schedule_, weights_, inputs_,
                     Tensor(out_.data(), DType::BF16, {tokens, hidden}), context_);
        forward_ms = ms_between(begin, Clock::now());
        table_ms = ms_between(begin, scheduled);
        forward_bytes = bytes_moved() - moved;
    }
    void backward() {
        meet(group_, "barrier before a timed pass");
        const int64_t moved = bytes_moved();
        const Clock::time_point begin = Clock::now();
        mok::backward(workspace_, *schedule_, weights_, inputs_, d_out_, context_, input_grads_,
                      weight_grads_);
        backward_ms = ms_between(begin, Clock::now());
        backward_bytes = bytes_moved() - moved;
    }

    void digest_output(io::Sha256& digest) const { digest.update(std::as_bytes(std::span(out_))); }
    void digest_gradients(io::Sha256& digest) const {
        digest.update(std::as_bytes(std::span(d_x_)));
        for (const std::vector<float>* grad : {&d_weights_, &d_gate_, &d_up_, &d_down_}) {
            digest.update(std::as_bytes(std::span(*grad)));
        }
    }
    std::span<const int32_t> tokens_per_expert() const { return schedule_->tokens_per_expert(); }
    int64_t workspace_bytes() const { return workspace_.bytes(); }
    int64_t context_bytes() const { return context_.bytes(); }

    double forward_ms = 0.0, backward_ms = 0.0, table_ms = 0.0;
    int64_t forward_bytes = 0, backward_bytes = 0;

  private:
    static Tuning tuning(const BenchRequest& request) {
        Tuning t;
        t.max_workers = request.num_workers;
        return t;
    }
    // Bytes that this rank has exchanged with other ranks.
    int64_t bytes_moved() const {
        const LinkBytes links = link_bytes(workspace_);
        int64_t bytes = 0;
        for (int r = 0; r < group_.size(); ++r) {
            if (r != group_.rank()) bytes += links.pulled[r] + links.pushed[r];
        }
        return bytes;
    }

    Group group_;
    Workspace workspace_;
    std::optional<Schedule> schedule_;
    Context context_;
    ConstTensor ids_, d_out_;
    Inputs inputs_;
    Weights weights_;
    std::optional<Fp8Weights> fp8_;
    InputGrads input_grads_;
    WeightGrads weight_grads_;
    std::vector<Bf16> out_, d_x_;
    std::vector<float> d_weights_, d_gate_, d_up_, d_down_;
};

using Ranks = std::vector<std::optional<RankBench>>;

double largest(const Ranks& ranks, double RankBench::*ms) {
    double most = 0.0;
    for (const auto& rank : ranks) most = std::max(most, (*rank).*ms);
    return most;
}
int64_t sum(const Ranks& ranks, int64_t RankBench::*bytes) {
    int64_t all = 0;
    for (const auto& rank : ranks) all += (*rank).*bytes;
    return all;
}

}  // namespace

BenchResult bench_layer(const BenchRequest& request) {
    require_possible(request);
    CaseOptions options;
    options.shape = request.shape;
    options.num_tokens = request.tokens_per_rank * request.num_ranks;
    options.backward = request.backward;
    const RandomCase c = random_case(options);

    const std::vector<Group> groups = Group::in_process(request.num_ranks);
    Ranks ranks(request.num_ranks);
    // Also the warm-up.
    run_ranks(groups, [&](const Group& group) {
        RankBench& rank = ranks[group.rank()].emplace(request, c, group);
        rank.forward();
        if (request.backward) rank.backward();
    });
    std::vector<int32_t> rows;
    for (const auto& rank : ranks) {
        rows.insert(rows.end(), rank->tokens_per_expert().begin(), rank->tokens_per_expert().end());
    }
    LibraryProducts library(rows, request.shape.hidden, request.shape.intermediate,
                            request.backward, request.num_ranks * request.num_workers);
    library.forward_ms();
    if (request.backward) library.backward_ms();

    BenchResult result;
    for (int i = 0; i < request.iterations; ++i) {
        run_ranks(groups, [&](const Group& group) { ranks[group.rank()]->forward(); });
        result.forward.layer_ms.push_back(largest(ranks, &RankBench::forward_ms));
        result.table_ms.push_back(largest(ranks, &RankBench::table_ms));
        result.forward.library_ms.push_back(library.forward_ms());
        if (!request.backward) continue;
        run_ranks(groups, [&](const Group& group) { ranks[group.rank()]->backward(); });
        result.backward.layer_ms.push_back(largest(ranks, &RankBench::backward_ms));
        result.backward.library_ms.push_back(library.backward_ms());
    }
    result.forward.link_bytes = sum(ranks, &RankBench::forward_bytes);
    result.backward.link_bytes = sum(ranks, &RankBench::backward_bytes);
    io::Sha256 digest;
    for (const auto& rank : ranks) rank->digest_output(digest);
    result.forward.digest = digest.finish_hex();
    if (request.backward) {
        for (const auto& rank : ranks) rank->digest_gradients(digest);
        result.backward.digest = digest.finish_hex();
    }
    for (const auto& rank : ranks) {
        result.workspace_bytes += rank->workspace_bytes();
        result.context_bytes += rank->context_bytes();
    }
    return result;
}

}  // namespace mok::cli
