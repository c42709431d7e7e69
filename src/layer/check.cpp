#include "layer/check.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <string>
#include <vector>

#include "layer/engine.h"

namespace mok::layer {
namespace {

std::string list(const int64_t* values, int num) {
    std::string text = "[";
    for (int i = 0; i < num; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
    return text + "]";
}

enum class Floats { BF16OrF32, F32 };

void require_dtype(const char* name, const ConstTensor& t, Floats allowed) {
    const bool ok =
        t.dtype == DType::F32 || (allowed == Floats::BF16OrF32 && t.dtype == DType::BF16);
    if (!ok) {
        throw ShapeError(std::string(name) + ": expected dtype " +
                         (allowed == Floats::F32 ? "F32" : "BF16 or F32") + ", found " +
                         dtype_name(t.dtype));
    }
}

void require_shape(const char* name, const ConstTensor& t, std::initializer_list<int64_t> want) {
    const std::vector<int64_t> shape(want);
    const int dims = static_cast<int>(shape.size());
    bool same = t.dims == dims;
    for (int i = 0; same && i < dims; ++i) same = t.shape[i] == shape[i];
    if (!same) {
        throw ShapeError(std::string(name) + ": expected shape " + list(shape.data(), dims) +
                         ", found " + list(t.shape.data(), t.dims));
    }
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    if (elements == 0) return;
    if (t.data == nullptr) {
        throw ShapeError(std::string(name) + ": expected data for shape " +
                         list(shape.data(), dims) + ", found none");
    }
    if (t.stride[dims - 1] != 1 && shape[dims - 1] > 1) {
        throw ShapeError(std::string(name) +
                         ": expected the last dimension contiguous, found stride " +
                         std::to_string(t.stride[dims - 1]));
    }
}

void require(const char* name, const ConstTensor& t, std::initializer_list<int64_t> shape,
             Floats allowed = Floats::BF16OrF32) {
    require_shape(name, t, shape);
    require_dtype(name, t, allowed);
}

void allow(const char* name, const ConstTensor& t, std::initializer_list<int64_t> shape,
           Floats allowed = Floats::BF16OrF32) {
    if (t.present()) require(name, t, shape, allowed);
}

// Two elements of an output must not share their memory: from the densest dimension on, each stride
// steps over all that the dimensions before it span.
void require_disjoint(const char* name, const Tensor& t) {
    std::vector<int> order(t.dims);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&t](int a, int b) { return t.stride[a] < t.stride[b]; });
    int64_t span = 1;
    for (const int d : order) {
        if (t.shape[d] <= 1) continue;
        if (t.stride[d] < span) {
            throw ShapeError(std::string(name) + ": expected a stride of at least " +
                             std::to_string(span) + " in dimension " + std::to_string(d) +
                             ", found " + std::to_string(t.stride[d]));
        }
        span += t.stride[d] * (t.shape[d] - 1);
    }
}

void require_output(const char* name, const Tensor& t, std::initializer_list<int64_t> shape,
                    Floats allowed = Floats::BF16OrF32) {
    require(name, t, shape, allowed);
    require_disjoint(name, t);
}
void allow_output(const char* name, const Tensor& t, std::initializer_list<int64_t> shape,
                  Floats allowed = Floats::BF16OrF32) {
    if (t.present()) require_output(name, t, shape, allowed);
}

void require_absent_without_shared(const char* name, const ConstTensor& t, int64_t width) {
    if (width == 0 && t.present()) {
        throw ShapeError(std::string(name) +
                         ": expected none, for the layer has no shared expert, found one");
    }
}

// The FP8 weights of a pass: needed where the precision is of FP8, and of the same experts.
void check_fp8(const Workspace::Impl& w, const Fp8Weights* weights) {
    if (!plan::is_fp8(w.problem)) {
        if (weights == nullptr) return;
        throw ShapeError("weights.fp8: expected none with precision bf16, found some");
    }
    if (weights == nullptr) {
        throw ShapeError("weights.fp8: expected FP8 weights with precision " +
                         std::string(precision_name(w.shape.precision)) +
                         " (quantize_weights), found none");
    }
    check_same_experts(w, *weights);
    if (!weights->impl().filled) {
        throw ShapeError(
            "weights.fp8: expected weights that quantize_weights has filled since the last "
            "invalidate(), found older ones");
    }
}

}  // namespace

void check_num_tokens(const Workspace::Impl& w, int64_t num_tokens) {
    if (num_tokens >= 0 && num_tokens <= w.problem.max_tokens) return;
    throw ShapeError("num_tokens: expected 0 to the workspace's max_tokens " +
                     std::to_string(w.problem.max_tokens) + ", found " +
                     std::to_string(num_tokens));
}

void check_same_experts(const Workspace::Impl& w, const Fp8Weights& weights) {
    const plan::Problem &a = w.problem, &b = weights.impl().problem;
    if (a.precision == b.precision && plan::num_local_experts(a) == plan::num_local_experts(b) &&
        a.hidden == b.hidden && a.intermediate == b.intermediate) {
        return;
    }
    const auto sizes = [](const plan::Problem& p) {
        return std::string(precision_name(p.precision)) + ", " +
               std::to_string(plan::num_local_experts(p)) + " experts, hidden " +
               std::to_string(p.hidden) + ", intermediate " + std::to_string(p.intermediate);
    };
    throw ShapeError("weights.fp8: expected those of " + sizes(a) + ", found " + sizes(b));
}

void check_quantizable(const Workspace::Impl& w, const Weights& t) {
    const int64_t e = plan::num_local_experts(w.problem), h = w.shape.hidden;
    const int64_t i = w.shape.intermediate;
    if (e == 0) return;
    require("gate", t.gate, {e, i, h});
    require("up", t.up, {e, i, h});
    require("down", t.down, {e, h, i});
}

void check_ids(const Workspace::Impl& w, const ConstTensor& ids) {
    const int64_t num_tokens = ids.dims > 0 ? std::max<int64_t>(ids.shape[0], 0) : 0;
    require_shape("topk_ids", ids, {num_tokens, w.shape.top_k});
    if (num_tokens > 0 && ids.dtype != DType::I32 && ids.dtype != DType::I64) {
        throw ShapeError(std::string("topk_ids: expected dtype I32 or I64, found ") +
                         dtype_name(ids.dtype));
    }
}

void check_tokens_per_expert(const Workspace::Impl& w, const Tensor& rows) {
    if (!rows.present()) return;
    require_shape("tokens_per_expert", rows, {plan::num_local_experts(w.problem)});
    if (rows.dtype != DType::I32) {
        throw ShapeError(std::string("tokens_per_expert: expected dtype I32, found ") +
                         dtype_name(rows.dtype));
    }
}

void check_weights(const Workspace::Impl& w, const Weights& t) {
    const int64_t e = plan::num_local_experts(w.problem), h = w.shape.hidden;
    const int64_t i = w.shape.intermediate, s = w.shape.shared_intermediate;
    const bool fp8 = plan::is_fp8(w.problem);
    check_fp8(w, t.fp8);
    if (e > 0) {
        if (!fp8 || t.gate.present()) require("gate", t.gate, {e, i, h});
        if (!fp8 || t.up.present()) require("up", t.up, {e, i, h});
        if (!fp8 || t.down.present()) require("down", t.down, {e, h, i});
        allow("gate_bias", t.gate_bias, {e, i});
        allow("up_bias", t.up_bias, {e, i});
        allow("down_bias", t.down_bias, {e, h});
    }
    require_absent_without_shared("shared_gate", t.shared_gate, s);
    require_absent_without_shared("shared_up", t.shared_up, s);
    require_absent_without_shared("shared_down", t.shared_down, s);
    if (s > 0) {
        require("shared_gate", t.shared_gate, {s, h});
        require("shared_up", t.shared_up, {s, h});
        require("shared_down", t.shared_down, {h, s});
    }
}

void check_inputs(const Workspace::Impl& w, int64_t num_tokens, const Inputs& in) {
    check_rows(w, num_tokens, "x", in.x);
    require("topk_weights", in.topk_weights, {num_tokens, w.shape.top_k}, Floats::F32);
    require_absent_without_shared("shared_weights", in.shared_weights, w.shape.shared_intermediate);
    allow("shared_weights", in.shared_weights, {num_tokens}, Floats::F32);
}

void check_rows(const Workspace::Impl& w, int64_t num_tokens, const char* name,
                const ConstTensor& rows) {
    require(name, rows, {num_tokens, w.shape.hidden});
}

void check_output(const Workspace::Impl& w, int64_t num_tokens, const Tensor& out) {
    require_output("out", out, {num_tokens, w.shape.hidden});
}

void check_input_grads(const Workspace::Impl& w, int64_t num_tokens, const InputGrads& g) {
    allow_output("d_x", g.x, {num_tokens, w.shape.hidden});
    allow_output("d_topk_weights", g.topk_weights, {num_tokens, w.shape.top_k}, Floats::F32);
    require_absent_without_shared("d_shared_weights", g.shared_weights,
                                  w.shape.shared_intermediate);
    allow_output("d_shared_weights", g.shared_weights, {num_tokens}, Floats::F32);
}

void check_weight_grads(const Workspace::Impl& w, const WeightGrads& g) {
    const int64_t e = plan::num_local_experts(w.problem), h = w.shape.hidden;
    const int64_t i = w.shape.intermediate, s = w.shape.shared_intermediate;
    const Floats routed = g.mode == GradMode::Chain ? Floats::F32 : Floats::BF16OrF32;
    const Floats shared = g.shared_mode == GradMode::Chain ? Floats::F32 : Floats::BF16OrF32;
    if (e > 0) {
        allow_output("d_gate", g.gate, {e, i, h}, routed);
        allow_output("d_up", g.up, {e, i, h}, routed);
        allow_output("d_down", g.down, {e, h, i}, routed);
        allow_output("d_gate_bias", g.gate_bias, {e, i}, routed);
        allow_output("d_up_bias", g.up_bias, {e, i}, routed);
        allow_output("d_down_bias", g.down_bias, {e, h}, routed);
    }
    require_absent_without_shared("d_shared_gate", g.shared_gate, s);
    require_absent_without_shared("d_shared_up", g.shared_up, s);
    require_absent_without_shared("d_shared_down", g.shared_down, s);
    if (s > 0) {
        allow_output("d_shared_gate", g.shared_gate, {s, h}, shared);
        allow_output("d_shared_up", g.shared_up, {s, h}, shared);
        allow_output("d_shared_down", g.shared_down, {h, s}, shared);
    }
}

void check_schedule(const Workspace::Impl& w, const Schedule::Impl& s) {
    if (s.workspace != w.identity) {
        throw ShapeError(
            "schedule: expected one made on this workspace, found one of another workspace");
    }
}

void check_context(const Workspace::Impl& w, const Schedule::Impl& s, const Context::Impl& c,
                   Context::Impl::Holds least) {
    if (c.holds < least) {
        throw ShapeError(least == Context::Impl::Holds::Operands
                             ? "context: expected one that backward_input completed, found one it "
                               "did not"
                             : "context: expected one that forward or recompute filled, found an "
                               "empty one");
    }
    if (c.schedule != s.identity) {
        const int64_t rows = w.engine->kept_rows(s);
        throw ShapeError(
            "context: expected one of this schedule (" + std::to_string(s.num_tokens) +
            " tokens, " + std::to_string(rows) + " routed rows), found one of another schedule (" +
            std::to_string(c.tokens) + " tokens, " + std::to_string(c.rows) + " rows)");
    }
}

}  // namespace mok::layer
