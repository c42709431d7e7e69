// The calls of `openmok.moe`, each in one entry: a forward, a backward, and its two parts.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <openmok/error.h>
#include <openmok/fp8_weights.h>
#include <openmok/layer.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "exchange.h"
#include "tensors.h"
#include "workspace.h"

namespace mok::python {
namespace {

// Tensors of a call, which the caller keeps alive; each is checked to lie where the group computes.
class Reader {
  public:
    explicit Reader(const SharedWorkspace& w) : device_(w.device) {}
    ConstTensor in(const std::string& name, nb::handle object) const {
        if (object.is_none()) return {};
        const HeldInput held = input(name, object);
        check_place(device_, held.place);
        return held.tensor;
    }
    Tensor out(const std::string& name, nb::handle object) const {
        if (object.is_none()) return {};
        const HeldOutput held = output(name, object);
        check_place(device_, held.place);
        return held.tensor;
    }
    Block bytes(const std::string& name, nb::handle object) const {
        const HeldBytes held = bytes_of(name, object);
        check_place(device_, held.place);
        return held.block;
    }

  private:
    Device device_;
};

// ---- The operands of a layer ------------------------------------------------------------------
// The library's tensors of one operand's name. Where there are two, the operand holds both: halves
// along `axis`, counted from the end.
template <class Set, class Void>
struct Fields {
    BasicTensor<Void> Set::*first;
    BasicTensor<Void> Set::*second;  // null: the operand is `first`
};

template <class Set, class Void>
BasicTensor<Void> Set::*field_of(const std::string& name) {
    if (name == "gate") return &Set::gate;
    if (name == "up") return &Set::up;
    if (name == "down") return &Set::down;
    if (name == "gate_bias") return &Set::gate_bias;
    if (name == "up_bias") return &Set::up_bias;
    if (name == "down_bias") return &Set::down_bias;
    if (name == "shared_gate") return &Set::shared_gate;
    if (name == "shared_up") return &Set::shared_up;
    if (name == "shared_down") return &Set::shared_down;
    throw nb::type_error(("there is no tensor of the name " + name).c_str());
}

// Half 0 or 1 of a tensor's dimension `axis`, counted from the end.
template <class Void>
BasicTensor<Void> half_of(const std::string& name, BasicTensor<Void> t, int axis, int half) {
    const int at = t.dims + axis;
    if (at < 0) {
        throw ShapeError(name + ": expected at least " + std::to_string(-axis) +
                         " dimensions, found " + std::to_string(t.dims));
    }
    if (t.shape[at] % 2 != 0) {
        throw ShapeError(name + ": expected an even number of rows in dimension " +
                         std::to_string(axis) + " (gate, then up), found " +
                         std::to_string(t.shape[at]));
    }
    t.shape[at] /= 2;
    if (half == 1 && t.data != nullptr) {
        const int64_t bytes = t.shape[at] * t.stride[at] * dtype_bytes(t.dtype);
        using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
        t.data = static_cast<Byte*>(t.data) + bytes;
    }
    return t;
}

// The weights that a caller hands in, by position, as the library's.
class Operands {
  public:
    // Of each operand: its name for errors, the library's one or two names, the axis of halves.
    using Description = std::tuple<std::string, std::vector<std::string>, int>;
    explicit Operands(const std::vector<Description>& operands) {
        for (const auto& [name, fields, axis] : operands) {
            if (fields.empty() || fields.size() > 2) {
                throw nb::type_error("operand: expected one or two fields");
            }
            const bool is_pair = fields.size() == 2;
            operands_.push_back({name,
                                 axis,
                                 {field_of<Weights, const void>(fields[0]),
                                  is_pair ? field_of<Weights, const void>(fields[1]) : nullptr},
                                 {field_of<WeightGrads, void>(fields[0]),
                                  is_pair ? field_of<WeightGrads, void>(fields[1]) : nullptr}});
        }
    }

    Weights weights(const Reader& reader, const nb::list& tensors) const {
        Weights set;
        for_each(tensors, [&](const Operand& o, nb::handle tensor) {
            place(set, o, o.weight, reader.in(o.name, tensor));
        });
        return set;
    }
    WeightGrads gradients(const Reader& reader, const nb::list& tensors, GradMode mode,
                          GradMode shared_mode) const {
        WeightGrads set;
        set.mode = mode;
        set.shared_mode = shared_mode;
        for_each(tensors, [&](const Operand& o, nb::handle tensor) {
            if (tensor.is_none()) return;
            place(set, o, o.gradient, reader.out("d_" + o.name, tensor));
        });
        return set;
    }

  private:
    struct Operand {
        std::string name;
        int axis;
        Fields<Weights, const void> weight;
        Fields<WeightGrads, void> gradient;
    };

    template <class Visit>
    void for_each(const nb::list& tensors, Visit visit) const {
        if (tensors.size() != operands_.size()) {
            throw nb::type_error("expected one tensor of each operand");
        }
        for (size_t i = 0; i < operands_.size(); ++i) visit(operands_[i], tensors[i]);
    }
    template <class Set, class Void>
    static void place(Set& set, const Operand& o, const Fields<Set, Void>& fields,
                      const BasicTensor<Void>& tensor) {
        if (fields.second == nullptr) {
            set.*fields.first = tensor;
            return;
        }
        set.*fields.first = half_of(o.name, tensor, o.axis, 0);
        set.*fields.second = half_of(o.name, tensor, o.axis, 1);
    }

    std::vector<Operand> operands_;
};

// ---- The calls --------------------------------------------------------------------------------
// What all of them take: tensors, and the stream on which their framework works.
struct Call {
    Call(SharedWorkspace& w, const Operands& operands, const nb::tuple& inputs,
         const nb::list& weights, const Fp8Weights* fp8)
        : workspace(w), reader(w) {
        if (inputs.size() != 3) throw nb::type_error("inputs: expected three tensors");
        this->inputs = {reader.in("x", inputs[0]), reader.in("topk_weights", inputs[1]),
                        reader.in("shared_weights", inputs[2])};
        this->weights = operands.weights(reader, weights);
        this->weights.fp8 = fp8;
        if (this->inputs.x.dims != 2) {
            throw ShapeError("x: expected 2 dimensions, found " +
                             std::to_string(this->inputs.x.dims));
        }
        if (w.device.kind == Device::Kind::Cuda) {
            stream = current_stream(inputs[0], w.device.index);
        }
    }
    int64_t num_tokens() const { return inputs.x.shape[0]; }

    // With the interpreter released, in this call's turn and on its stream.
    template <class Work>
    void run(Work work) {
        const nb::gil_scoped_release released;
        const std::lock_guard lock(workspace.turn);
        if (stream) {
            workspace.workspace.set_stream(reinterpret_cast<void*>(*stream));
            workspace.may_be_captured |= *stream != 0;
        }
        work(workspace.workspace);
    }

    SharedWorkspace& workspace;
    Reader reader;
    Inputs inputs;
    Weights weights;
    std::optional<uintptr_t> stream;
};

// One block of bytes holds a call's schedule and, behind it, its context.
struct KeptBlocks {
    KeptBlocks(const Workspace& w, int64_t num_tokens, const Block& whole) {
        constexpr int64_t kAlign = 256;
        const int64_t used = (w.schedule_bytes(num_tokens) + kAlign - 1) / kAlign * kAlign;
        if (whole.bytes < used) {
            throw ShapeError("kept: expected at least " + std::to_string(used) +
                             " bytes for the schedule, found " + std::to_string(whole.bytes));
        }
        schedule = {whole.data, used};
        context = {static_cast<std::byte*>(whole.data) + used, whole.bytes - used};
    }
    Block schedule, context;
};

void moe_forward(SharedWorkspace& w, const Operands& operands, const nb::tuple& inputs,
                 nb::handle topk_ids, const nb::list& weights, nb::handle out,
                 nb::handle tokens_per_expert, nb::handle kept, bool keeps_context,
                 const Fp8Weights* fp8) {
    Call call(w, operands, inputs, weights, fp8);
    const ConstTensor ids = call.reader.in("topk_ids", topk_ids);
    const Tensor o = call.reader.out("out", out);
    const Tensor rows = call.reader.out("tokens_per_expert", tokens_per_expert);
    const Block block = call.reader.bytes("kept", kept);
    call.run([&](Workspace& workspace) {
        const KeptBlocks blocks(workspace, call.num_tokens(), block);
        const Schedule schedule(workspace, ids, blocks.schedule, rows);
        if (keeps_context) {
            Context context(blocks.context);
            forward(workspace, schedule, call.weights, call.inputs, o, context);
        } else {
            forward(workspace, schedule, call.weights, call.inputs, o);
        }
    });
}

// A call between its forward and the end of its backward.
struct Restored {
    Restored(Workspace& w, int64_t num_tokens, const KeptBlocks& blocks)
        : schedule(Schedule::restored(w, num_tokens, blocks.schedule)),
          context(Context::restored(w, schedule, blocks.context)) {}
    Schedule schedule;
    Context context;
};

InputGrads input_grads_of(const Reader& reader, const nb::tuple& tensors) {
    if (tensors.size() != 3) throw nb::type_error("d_inputs: expected three tensors or None");
    return {reader.out("d_x", tensors[0]), reader.out("d_topk_weights", tensors[1]),
            reader.out("d_shared_weights", tensors[2])};
}

using Modes = std::tuple<GradMode, GradMode>;  // of the routed experts, of the shared expert

void moe_backward(SharedWorkspace& w, const Operands& operands, const nb::tuple& inputs,
                  const nb::list& weights, nb::handle d_out, nb::handle kept,
                  const nb::tuple& d_inputs, const nb::list& d_weights, const Modes& modes,
                  const Fp8Weights* fp8) {
    Call call(w, operands, inputs, weights, fp8);
    const ConstTensor d = call.reader.in("d_out", d_out);
    const Block block = call.reader.bytes("kept", kept);
    const InputGrads input_grads = input_grads_of(call.reader, d_inputs);
    const WeightGrads weight_grads =
        operands.gradients(call.reader, d_weights, std::get<0>(modes), std::get<1>(modes));
    call.run([&](Workspace& workspace) {
        Restored r(workspace, call.num_tokens(), {workspace, call.num_tokens(), block});
        backward(workspace, r.schedule, call.weights, call.inputs, d, r.context, input_grads,
                 weight_grads);
    });
}

// The weights' gradients come later, from the Restored that this returns; it needs `kept`.
Restored moe_backward_input(SharedWorkspace& w, const Operands& operands, const nb::tuple& inputs,
                            const nb::list& weights, nb::handle d_out, nb::handle kept,
                            const nb::tuple& d_inputs, const Fp8Weights* fp8) {
    Call call(w, operands, inputs, weights, fp8);
    const ConstTensor d = call.reader.in("d_out", d_out);
    const Block block = call.reader.bytes("kept", kept);
    const InputGrads input_grads = input_grads_of(call.reader, d_inputs);
    std::optional<Restored> restored;
    call.run([&](Workspace& workspace) {
        restored.emplace(workspace, call.num_tokens(),
                         KeptBlocks(workspace, call.num_tokens(), block));
        backward_input(workspace, restored->schedule, call.weights, call.inputs, d,
                       restored->context, input_grads);
    });
    return std::move(*restored);
}

// Of all weights, or (is_shared_alone) of the shared expert's, which is not collective.
void moe_wgrad(SharedWorkspace& w, const Operands& operands, const nb::tuple& inputs,
               const nb::list& weights, nb::handle d_out, Restored& restored,
               const nb::list& d_weights, const Modes& modes, bool is_shared_alone,
               const Fp8Weights* fp8) {
    Call call(w, operands, inputs, weights, fp8);
    const ConstTensor d = call.reader.in("d_out", d_out);
    const WeightGrads weight_grads =
        operands.gradients(call.reader, d_weights, std::get<0>(modes), std::get<1>(modes));
    call.run([&](Workspace& workspace) {
        if (is_shared_alone) {
            shared_wgrad(workspace, restored.schedule, call.inputs, d, restored.context,
                         weight_grads);
        } else {
            wgrad(workspace, restored.schedule, call.weights, call.inputs, d, restored.context,
                  weight_grads);
        }
    });
}

// The call's weights into `fp8`, on its stream.
void moe_quantize(SharedWorkspace& w, const Operands& operands, nb::handle x,
                  const nb::list& weights, Fp8Weights& fp8) {
    const Reader reader(w);
    const Weights tensors = operands.weights(reader, weights);
    std::optional<uintptr_t> stream;
    if (w.device.kind == Device::Kind::Cuda) stream = current_stream(x, w.device.index);
    const nb::gil_scoped_release released;
    const std::lock_guard lock(w.turn);
    if (stream) w.workspace.set_stream(reinterpret_cast<void*>(*stream));
    quantize_weights(w.workspace, tensors, fp8);
}

}  // namespace

void bind_moe(nb::module_& module) {
    using namespace nb::literals;
    nb::class_<Operands>(module, "Operands")
        .def(nb::init<const std::vector<Operands::Description>&>(), "operands"_a);
    nb::class_<Restored>(module, "Restored");
    module.def("moe_forward", &moe_forward, "workspace"_a, "operands"_a, "inputs"_a, "topk_ids"_a,
               "weights"_a, "out"_a, "tokens_per_expert"_a, "kept"_a, "keeps_context"_a,
               "fp8"_a.none() = nb::none());
    module.def("moe_backward", &moe_backward, "workspace"_a, "operands"_a, "inputs"_a, "weights"_a,
               "d_out"_a, "kept"_a, "d_inputs"_a, "d_weights"_a, "modes"_a,
               "fp8"_a.none() = nb::none());
    module.def("moe_backward_input", &moe_backward_input, "workspace"_a, "operands"_a, "inputs"_a,
               "weights"_a, "d_out"_a, "kept"_a, "d_inputs"_a, "fp8"_a.none() = nb::none());
    module.def("moe_wgrad", &moe_wgrad, "workspace"_a, "operands"_a, "inputs"_a, "weights"_a,
               "d_out"_a, "restored"_a, "d_weights"_a, "modes"_a, "is_shared_alone"_a,
               "fp8"_a.none() = nb::none());
    module.def("moe_quantize", &moe_quantize, "workspace"_a, "operands"_a, "x"_a, "weights"_a,
               "fp8"_a);
}

}  // namespace mok::python
