#include "layer/check.h"
#include "layer/engine.h"

namespace mok {
namespace {

void describe(Schedule::Impl& s, const Workspace::Impl& w, int64_t num_tokens) {
    s.workspace = w.identity;
    s.engine = w.engine;
    s.num_tokens = num_tokens;
    s.num_experts = plan::num_local_experts(w.problem);
    s.num_ranks = w.problem.num_ranks;
}

}  // namespace

Schedule::Schedule(Workspace& workspace, ConstTensor topk_ids) : impl_(std::make_unique<Impl>()) {
    const Workspace::Impl& w = workspace.impl();
    layer::check_ids(w, topk_ids);
    describe(*impl_, w, topk_ids.shape[0]);
    w.engine->build_schedule(*impl_, topk_ids, nullptr);
}

Schedule::Schedule(Workspace& workspace, ConstTensor topk_ids, Block block,
                   Tensor tokens_per_expert)
    : impl_(std::make_unique<Impl>()) {
    const Workspace::Impl& w = workspace.impl();
    layer::check_ids(w, topk_ids);
    layer::check_tokens_per_expert(w, tokens_per_expert);
    describe(*impl_, w, topk_ids.shape[0]);
    if (impl_->num_tokens <= w.problem.max_tokens) {
        impl_->memory =
            layer::caller_memory("schedule", block, workspace.schedule_bytes(impl_->num_tokens));
    }
    w.engine->build_schedule(*impl_, topk_ids, static_cast<int32_t*>(tokens_per_expert.data));
}

Schedule::Schedule(Workspace& workspace, int64_t num_tokens, Block block)
    : impl_(std::make_unique<Impl>()) {
    const Workspace::Impl& w = workspace.impl();
    describe(*impl_, w, num_tokens);
    impl_->memory = layer::caller_memory("schedule", block, workspace.schedule_bytes(num_tokens));
    w.engine->restore_schedule(*impl_);
}

Schedule Schedule::restored(Workspace& workspace, int64_t num_tokens, Block block) {
    return Schedule(workspace, num_tokens, block);
}

Schedule::~Schedule() = default;
Schedule::Schedule(Schedule&&) noexcept = default;
Schedule& Schedule::operator=(Schedule&&) noexcept = default;

std::span<const int32_t> Schedule::tokens_per_expert() const {
    return impl_->engine->tokens_per_expert(*impl_);
}

ConstTensor Schedule::tokens_per_expert_device() const {
    // The last of each expert's R + 1 entries of home_begin is its rows.
    ConstTensor rows(impl_->table.home_begin + impl_->num_ranks, DType::I32,
                     {impl_->num_experts, 1});
    rows.stride[0] = impl_->num_ranks + 1;
    return rows;
}

}  // namespace mok
