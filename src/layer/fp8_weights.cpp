#include "layer/check.h"
#include "layer/engine.h"

namespace mok {

Fp8Weights::Fp8Weights(const Workspace& workspace) : impl_(std::make_unique<Impl>()) {
    const Workspace::Impl& w = workspace.impl();
    if (!plan::is_fp8(w.problem)) {
        throw ShapeError(
            "FP8 weights: expected a workspace of precision fp8_block or mxfp8, found one of bf16");
    }
    impl_->engine = w.engine;
    impl_->problem = w.problem;
    impl_->memory = w.engine->allocate(w.fp8_weights_map.total);
    const int64_t operand_bytes = w.engine->fp8_operand_bytes();
    if (operand_bytes > 0) impl_->operands = w.engine->allocate(operand_bytes);
}

Fp8Weights::~Fp8Weights() = default;
Fp8Weights::Fp8Weights(Fp8Weights&&) noexcept = default;
Fp8Weights& Fp8Weights::operator=(Fp8Weights&&) noexcept = default;

void Fp8Weights::invalidate() {
    impl_->filled = false;
}
void Fp8Weights::set_filled() {
    impl_->engine->make_fp8_operands(impl_->memory.data(), impl_->operands.data());
    impl_->filled = true;
}
bool Fp8Weights::is_filled() const {
    return impl_->filled;
}
std::byte* Fp8Weights::data() {
    return impl_->memory.data();
}
int64_t Fp8Weights::bytes() const {
    return impl_->memory.bytes();
}

void quantize_weights(Workspace& workspace, const Weights& weights, Fp8Weights& to) {
    const Workspace::Impl& w = workspace.impl();
    layer::check_same_experts(w, to);
    layer::check_quantizable(w, weights);
    Fp8Weights::Impl& impl = to.impl();
    w.engine->quantize_weights(weights, impl.memory.data());
    w.engine->make_fp8_operands(impl.memory.data(), impl.operands.data());
    impl.filled = true;
}

}  // namespace mok
