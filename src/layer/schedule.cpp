#include "layer/check.h"
#include "layer/engine.h"

namespace mok {

Schedule::Schedule(Workspace& workspace, ConstTensor topk_ids) : impl_(std::make_unique<Impl>()) {
    const Workspace::Impl& w = workspace.impl();
    layer::check_ids(w, topk_ids);
    impl_->workspace = w.identity;
    impl_->engine = w.engine;
    impl_->num_tokens = topk_ids.shape[0];
    impl_->num_experts = plan::num_local_experts(w.problem);
    impl_->num_ranks = w.problem.num_ranks;
    w.engine->build_schedule(*impl_, topk_ids);
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
