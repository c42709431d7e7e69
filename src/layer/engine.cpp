#include "layer/engine.h"

namespace mok::layer {

std::shared_ptr<Engine> make_engine(const Setup& setup) {
    return setup.group.device().kind == Device::Kind::Cuda ? make_cuda_engine(setup)
                                                           : make_cpu_engine(setup);
}

namespace {

void reserve(Engine& engine, bool reusable, int64_t bytes, Memory& block) {
    if (reusable && block.data() != nullptr && block.bytes() >= bytes) return;
    block = Memory();
    block = engine.allocate(bytes);
}

}  // namespace

void reserve_activations(const Workspace::Impl& w, const Schedule::Impl& s, Context::Impl& c) {
    // Another workspace's memory may be handed out again in the order of that one's calls.
    const bool same_workspace = c.workspace == w.identity;
    c.holds = Context::Impl::Holds::Nothing;
    c.schedule = s.identity;
    c.workspace = w.identity;
    c.rows = w.engine->kept_rows(s);
    c.tokens = s.num_tokens;
    c.map = plan::context_map(w.problem, c.rows, c.tokens, true);
    c.saved_bytes = plan::context_map(w.problem, c.rows, c.tokens, false).total;
    reserve(*w.engine, same_workspace, c.saved_bytes, c.saved);
    c.operands = Memory();
}

void reserve_operands(const Workspace::Impl& w, Context::Impl& c) {
    reserve(*w.engine, true, c.map.total - c.saved_bytes, c.operands);
}

}  // namespace mok::layer
