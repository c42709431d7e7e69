#include "layer/engine.h"

#include <string>

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

// The context's places and sizes for a call of this schedule.
void describe_activations(const Workspace::Impl& w, const Schedule::Impl& s, Context::Impl& c) {
    c.schedule = s.identity;
    c.workspace = w.identity;
    c.rows = w.engine->kept_rows(s);
    c.tokens = s.num_tokens;
    c.map = plan::context_map(w.problem, c.rows, c.tokens, true);
    c.saved_bytes = plan::context_map(w.problem, c.rows, c.tokens, false).total;
    c.operands = Memory();
}

}  // namespace

Memory caller_memory(const char* what, const Block& block, int64_t bytes) {
    constexpr uintptr_t kAlign = 16;
    const std::string name = what;
    if (block.bytes < bytes || (block.data == nullptr && bytes > 0)) {
        throw ShapeError(name + ": expected a block of at least " + std::to_string(bytes) +
                         " bytes, found " +
                         (block.data == nullptr ? "none" : std::to_string(block.bytes)));
    }
    if (reinterpret_cast<uintptr_t>(block.data) % kAlign != 0) {
        throw ShapeError(name + ": expected a block aligned to 16 bytes, found one that is not");
    }
    return Memory(static_cast<std::byte*>(block.data), block.bytes, [](std::byte*) {});
}

void reserve_activations(const Workspace::Impl& w, const Schedule::Impl& s, Context::Impl& c) {
    // Another workspace's memory may be handed out again in the order of that one's calls.
    const bool same_workspace = c.workspace == w.identity;
    c.holds = Context::Impl::Holds::Nothing;
    describe_activations(w, s, c);
    if (c.block.data != nullptr) {
        c.saved = caller_memory("context", c.block, c.saved_bytes);
    } else {
        reserve(*w.engine, same_workspace, c.saved_bytes, c.saved);
    }
}

void restore_activations(const Workspace::Impl& w, const Schedule::Impl& s, Context::Impl& c) {
    describe_activations(w, s, c);
    c.saved = caller_memory("context", c.block, c.saved_bytes);
    c.holds = Context::Impl::Holds::Activations;
}

void reserve_operands(const Workspace::Impl& w, Context::Impl& c) {
    reserve(*w.engine, true, c.map.total - c.saved_bytes, c.operands);
}

}  // namespace mok::layer
