#include <atomic>
#include <bit>
#include <cstring>
#include <span>
#include <type_traits>

#include "comm/group_state.h"
#include "layer/check.h"
#include "layer/engine.h"
#include "plan/make_problem.h"
#include "plan/validate.h"

namespace mok {
namespace {

// NaN, which the rules refuse afterwards, agrees with itself.
bool same_bits(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// What must be equal on all ranks.
struct Agreement {
    LayerShape shape;
    int64_t minibatch_rows, macrobatch_rows, context_rows, keep_x, fp8_dispatch, max_tokens;

    bool operator==(const Agreement& o) const {
        return shape.hidden == o.shape.hidden && shape.intermediate == o.shape.intermediate &&
               shape.num_experts == o.shape.num_experts && shape.top_k == o.shape.top_k &&
               shape.shared_intermediate == o.shape.shared_intermediate &&
               same_bits(shape.activation.limit, o.shape.activation.limit) &&
               same_bits(shape.activation.alpha, o.shape.activation.alpha) &&
               same_bits(shape.activation.beta, o.shape.activation.beta) &&
               shape.precision == o.shape.precision && fp8_dispatch == o.fp8_dispatch &&
               minibatch_rows == o.minibatch_rows && macrobatch_rows == o.macrobatch_rows &&
               context_rows == o.context_rows && keep_x == o.keep_x && max_tokens == o.max_tokens;
    }
};

// The first rank whose arguments differ from rank 0's, -1: none.
int disagreeing_rank(const std::vector<comm::Bytes>& all) {
    static_assert(std::is_trivially_copyable_v<Agreement>);
    std::vector<Agreement> given(all.size());
    for (size_t r = 0; r < all.size(); ++r) {
        if (all[r].size() != sizeof(Agreement)) return static_cast<int>(r);
        std::memcpy(&given[r], all[r].data(), sizeof(Agreement));
        if (!(given[r] == given[0])) return static_cast<int>(r);
    }
    return -1;
}

}  // namespace

uint64_t layer::new_identity() {
    static std::atomic<uint64_t> last = 0;
    return ++last;
}

Workspace::Impl::Impl(Group g, const LayerShape& s, const Tuning& t, int64_t max_tokens)
    : Setup{.group = std::move(g),
            .shape = s,
            .tuning = t,
            .problem = {},
            .window_map = {},
            .map = {},
            .fp8_weights_map = {}} {
    const Agreement mine{s,        t.minibatch_rows, t.macrobatch_rows, t.context_rows,
                         t.keep_x, t.fp8_dispatch,   max_tokens};
    const int other = disagreeing_rank(group.state().exchange_bytes(
        group.rank(), std::as_bytes(std::span(&mine, 1)), "workspace's agreement"));
    if (other >= 0) {
        throw ShapeError("workspace: rank " + std::to_string(other) +
                         " was given another shape, tuning or max_tokens than rank 0");
    }
    // All ranks hold the same arguments here, so all throw or none does.
    std::string broken_rules;
    for (const std::string& rule : plan::problems_of(s, t, group.size(), max_tokens)) {
        broken_rules += (broken_rules.empty() ? "" : "; ") + rule;
    }
    if (!broken_rules.empty()) throw ShapeError(broken_rules);

    problem = plan::make_problem(s, t, group.size(), group.rank(), max_tokens);
    const bool on_gpu = group.device().kind == Device::Kind::Cuda;
    const plan::RunsOn runs_on = on_gpu ? plan::RunsOn::Gpu : plan::RunsOn::Cpu;
    window_map = plan::window_map(problem, runs_on);
    map = plan::workspace_map(problem, runs_on);
    fp8_weights_map = plan::fp8_weights_map(problem);
    try {
        engine = layer::make_engine(*this);
    } catch (const TimeoutError&) {
        throw;
    } catch (const std::exception& e) {
        group.abandon(e.what());  // the other ranks wait for this one's memory
        throw;
    }
}

Workspace::Workspace(Group group, const LayerShape& shape, const Tuning& tuning, int64_t max_tokens)
    : impl_(std::make_unique<Impl>(std::move(group), shape, tuning, max_tokens)) {}
Workspace::~Workspace() = default;
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;

int64_t Workspace::bytes() const {
    return impl_->engine->bytes();
}
int Workspace::first_expert() const {
    return plan::first_expert(impl_->problem, impl_->problem.rank);
}
int Workspace::num_local_experts() const {
    return plan::num_local_experts(impl_->problem);
}
int64_t Workspace::schedule_bytes(int64_t num_tokens) const {
    layer::check_num_tokens(*impl_, num_tokens);
    return plan::schedule_map(impl_->problem, num_tokens).total;
}
int64_t Workspace::context_bytes(int64_t num_tokens) const {
    layer::check_num_tokens(*impl_, num_tokens);
    const plan::Problem& p = impl_->problem;
    return plan::context_map(p, plan::max_kept_rows(p, num_tokens), num_tokens, false).total;
}
void Workspace::set_stream(void* cuda_stream) {
    impl_->engine->set_stream(cuda_stream);
}

void synchronize(Workspace& workspace) {
    workspace.impl().engine->synchronize();
}
void set_diagnostics(Workspace& workspace, const Diagnostics& diagnostics) {
    workspace.impl().engine->set_diagnostics(diagnostics);
}
LinkBytes link_bytes(const Workspace& workspace) {
    return workspace.impl().engine->link_bytes();
}
std::vector<TracedTask> trace(Workspace& workspace) {
    return workspace.impl().engine->trace();
}
PassTimes pass_times(Workspace& workspace) {
    return workspace.impl().engine->pass_times();
}
void poison(Workspace& workspace) {
    workspace.impl().engine->poison();
}

}  // namespace mok
