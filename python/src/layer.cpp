#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <openmok/diagnostics.h>
#include <openmok/error.h>
#include <openmok/layer.h>

#include <initializer_list>
#include <vector>

#include "bindings.h"
#include "tensors.h"
#include "workspace.h"

namespace mok::python {
namespace {

Precision precision_of(nb::handle name) {
    const std::string found = nb::cast<std::string>(name);
    for (const Precision p : {Precision::BF16, Precision::Fp8Block, Precision::Mxfp8}) {
        if (found == precision_name(p)) return p;
    }
    throw ShapeError("precision: expected bf16, fp8_block or mxfp8, found " + found);
}

LayerShape shape_of(nb::handle s) {
    const nb::object a = s.attr("activation");
    return {.hidden = nb::cast<int64_t>(s.attr("hidden")),
            .intermediate = nb::cast<int64_t>(s.attr("intermediate")),
            .num_experts = nb::cast<int64_t>(s.attr("num_experts")),
            .top_k = nb::cast<int64_t>(s.attr("top_k")),
            .shared_intermediate = nb::cast<int64_t>(s.attr("shared_intermediate")),
            .activation = {.limit = nb::cast<float>(a.attr("limit")),
                           .alpha = nb::cast<float>(a.attr("alpha")),
                           .beta = nb::cast<float>(a.attr("beta"))},
            .precision = precision_of(s.attr("precision"))};
}

Tuning tuning_of(nb::handle t) {
    return {.minibatch_rows = nb::cast<int64_t>(t.attr("minibatch_rows")),
            .macrobatch_rows = nb::cast<int64_t>(t.attr("macrobatch_rows")),
            .context_rows = nb::cast<int64_t>(t.attr("context_rows")),
            .keep_x = nb::cast<bool>(t.attr("keep_x")),
            .max_workers = nb::cast<int>(t.attr("max_workers")),
            .fp8_dispatch = nb::cast<bool>(t.attr("fp8_dispatch"))};
}

void run_forward(SharedWorkspace& w, const Schedule& s, const Held<Weights>& weights,
                 const Held<Inputs>& inputs, nb::handle out, Context* context) {
    const HeldOutput o = output("out", out);
    const std::vector<Place> place = {o.place};
    run(w, {&weights.places, &inputs.places, &place}, [&](Workspace& workspace) {
        if (context != nullptr) {
            forward(workspace, s, weights.tensors, inputs.tensors, o.tensor, *context);
        } else {
            forward(workspace, s, weights.tensors, inputs.tensors, o.tensor);
        }
    });
}

void run_recompute(SharedWorkspace& w, const Schedule& s, const Held<Weights>& weights,
                   const Held<Inputs>& inputs, Context& context) {
    run(w, {&weights.places, &inputs.places}, [&](Workspace& workspace) {
        recompute(workspace, s, weights.tensors, inputs.tensors, context);
    });
}

Block block_of(uintptr_t data, int64_t bytes) {
    return {reinterpret_cast<void*>(data), bytes};
}

// What the three backward calls share, by name.
struct Saved {
    Schedule& schedule;
    const Held<Weights>& weights;
    const Held<Inputs>& inputs;
    Context& context;
};

Saved saved_of(const nb::tuple& saved) {
    if (saved.size() != 4) throw nb::type_error("saved: expected four objects");
    return {nb::cast<Schedule&>(saved[0]), nb::cast<const Held<Weights>&>(saved[1]),
            nb::cast<const Held<Inputs>&>(saved[2]), nb::cast<Context&>(saved[3])};
}

void run_backward(SharedWorkspace& w, const nb::tuple& saved, nb::handle d_out,
                  const Held<InputGrads>* input_grads, const Held<WeightGrads>* weight_grads) {
    const Saved s = saved_of(saved);
    const HeldInput d = input("d_out", d_out);
    const std::vector<Place> place = {d.place}, none;
    run(w,
        {&s.weights.places, &s.inputs.places, &place, input_grads ? &input_grads->places : &none,
         weight_grads ? &weight_grads->places : &none},
        [&](Workspace& workspace) {
            const auto& [schedule, weights, inputs, context] = s;
            if (weight_grads == nullptr) {
                backward_input(workspace, schedule, weights.tensors, inputs.tensors, d.tensor,
                               context, input_grads->tensors);
            } else if (input_grads == nullptr) {
                wgrad(workspace, schedule, weights.tensors, inputs.tensors, d.tensor, context,
                      weight_grads->tensors);
            } else {
                backward(workspace, schedule, weights.tensors, inputs.tensors, d.tensor, context,
                         input_grads->tensors, weight_grads->tensors);
            }
        });
}

void run_shared_wgrad(SharedWorkspace& w, const nb::tuple& saved, nb::handle d_out,
                      const Held<WeightGrads>& grads) {
    const Saved s = saved_of(saved);
    const HeldInput d = input("d_out", d_out);
    const std::vector<Place> place = {d.place};
    run(w, {&s.inputs.places, &place, &grads.places}, [&](Workspace& workspace) {
        shared_wgrad(workspace, s.schedule, s.inputs.tensors, d.tensor, s.context, grads.tensors);
    });
}

void bind_operands(nb::module_& module) {
    using namespace nb::literals;
    nb::enum_<GradMode>(module, "GradMode",
                        "How a gradient is stored; g: the FP32 sum of the pass.")
        .value("Overwrite", GradMode::Overwrite, "new = round(g)")
        .value("Accumulate", GradMode::Accumulate, "new = round(old + g)")
        .value("Chain", GradMode::Chain,
               "FP32: the sum goes on from old. A chain of calls on pieces of a multiple of 128\n"
               "tokens has the bits of one call.");
    nb::class_<Held<Weights>>(
        module, "Weights",
        "Of this rank's experts, BF16 or F32, by keyword: gate, up [E_l, I, H]; down [E_l, H, I];\n"
        "optional: gate_bias, up_bias [E_l, I], down_bias [E_l, H]; with a shared expert:\n"
        "shared_gate, shared_up [S, H], shared_down [H, S]. In FP8 also fp8, an Fp8Weights, in "
        "whose\n"
        "place gate, up and down may be absent.")
        .def("__init__", [](Held<Weights>* self, const nb::kwargs& tensors) {
            new (self) Held<Weights>(hold_weights(tensors));
        });
    nb::class_<Held<Inputs>>(
        module, "Inputs",
        "By keyword: x [T, H] BF16 or F32; topk_weights [T, K] F32; optional: shared_weights [T]\n"
        "F32, the shared expert's weight of each token.")
        .def("__init__", [](Held<Inputs>* self, const nb::kwargs& tensors) {
            new (self) Held<Inputs>(hold_inputs(tensors));
        });
    nb::class_<Held<InputGrads>>(
        module, "InputGrads",
        "Where the gradients of the inputs go, by keyword, of Inputs' shapes: x BF16 or F32,\n"
        "topk_weights and shared_weights F32; one that is absent is not computed.")
        .def("__init__", [](Held<InputGrads>* self, const nb::kwargs& tensors) {
            new (self) Held<InputGrads>(hold_input_grads(tensors));
        });
    nb::class_<Held<WeightGrads>>(
        module, "WeightGrads",
        "Where the gradients of the weights go, by Weights' names and shapes, BF16 or F32; one\n"
        "that is absent is not computed. mode: of the routed experts, shared_mode: of the shared\n"
        "expert.")
        .def(
            "__init__",
            [](Held<WeightGrads>* self, GradMode mode, GradMode shared_mode,
               const nb::kwargs& tensors) {
                new (self) Held<WeightGrads>(hold_weight_grads(tensors));
                self->tensors.mode = mode;
                self->tensors.shared_mode = shared_mode;
            },
            "mode"_a = GradMode::Overwrite, "shared_mode"_a = GradMode::Overwrite, "tensors"_a);
}

// The rows of each local expert where the group computes, [E_l, 1] I32, as a DLPack tensor.
nb::ndarray<> rows_of_experts(nb::handle_t<Schedule> self, SharedWorkspace& w) {
    const ConstTensor t = nb::cast<Schedule&>(self).tokens_per_expert_device();
    const size_t shape[] = {static_cast<size_t>(t.shape[0]), 1};
    const int64_t strides[] = {t.stride[0], 1};
    const int device =
        w.device.kind == Device::Kind::Cuda ? nb::device::cuda::value : nb::device::cpu::value;
    return {const_cast<void*>(t.data), 2,      shape,         self, strides,
            nb::dtype<int32_t>(),      device, w.device.index};
}

}  // namespace

void bind_layer(nb::module_& module) {
    using namespace nb::literals;
    bind_operands(module);

    nb::class_<SharedWorkspace>(
        module, "Workspace",
        "Memory that all layers of one shape share. Collective: every rank passes the same shape,\n"
        "tuning and max_tokens, the most tokens of a rank in a call; else MokShapeError.")
        .def(
            "__init__",
            [](SharedWorkspace* self, const Group& group, nb::handle shape, nb::handle tuning,
               int64_t max_tokens) {
                const LayerShape s = shape_of(shape);
                const Tuning t = tuning_of(tuning);
                const nb::gil_scoped_release released;
                new (self) SharedWorkspace(group, s, t, max_tokens);
            },
            "group"_a, "shape"_a, "tuning"_a, "max_tokens"_a)
        .def_ro("max_tokens", &SharedWorkspace::max_tokens)
        .def_ro("_may_be_captured", &SharedWorkspace::may_be_captured)
        .def_prop_ro("bytes", [](const SharedWorkspace& w) { return w.workspace.bytes(); })
        .def(
            "schedule_bytes",
            [](const SharedWorkspace& w, int64_t num_tokens) {
                return w.workspace.schedule_bytes(num_tokens);
            },
            "num_tokens"_a, "Bytes of a schedule of so many tokens of this rank.")
        .def(
            "context_bytes",
            [](const SharedWorkspace& w, int64_t num_tokens) {
                return w.workspace.context_bytes(num_tokens);
            },
            "num_tokens"_a, "Bytes of a context of so many tokens of this rank.")
        .def_prop_ro("first_expert",
                     [](const SharedWorkspace& w) { return w.workspace.first_expert(); })
        .def_prop_ro("num_local_experts",
                     [](const SharedWorkspace& w) { return w.workspace.num_local_experts(); })
        .def(
            "set_stream",
            [](SharedWorkspace& w, uintptr_t stream) {
                const nb::gil_scoped_release released;
                const std::lock_guard lock(w.turn);
                w.workspace.set_stream(reinterpret_cast<void*>(stream));
                w.may_be_captured |= stream != 0;
            },
            "cuda_stream"_a, "CUDA: the cudaStream_t of the calls from now on.")
        .def(
            "synchronize",
            [](SharedWorkspace& w) {
                run(w, {}, [](Workspace& workspace) { synchronize(workspace); });
            },
            "Waits for the calls so far; raises what went wrong in them on the device.")
        .def(
            "_lose_arrivals_of",
            [](SharedWorkspace& w, int64_t task) {
                Diagnostics d;
                d.lose_arrivals_of = task;
                run(w, {}, [&](Workspace& workspace) { set_diagnostics(workspace, d); });
            },
            "task"_a, "For tests: the task of this number in every pass tells nobody; -1: none.");

    nb::class_<Schedule>(
        module, "Schedule",
        "Where every choice of one call goes: of topk_ids [T, K] I32 or I64, -1: no expert.\n"
        "Collective. MokShapeError for an id outside [-1, E); on a GPU synchronize raises it.")
        .def(
            "__init__",
            [](Schedule* self, SharedWorkspace& w, nb::handle topk_ids) {
                const HeldInput ids = input("topk_ids", topk_ids);
                const std::vector<Place> place = {ids.place};
                run(w, {&place},
                    [&](Workspace& workspace) { new (self) Schedule(workspace, ids.tensor); });
            },
            "workspace"_a, "topk_ids"_a)
        .def(
            "__init__",
            [](Schedule* self, SharedWorkspace& w, nb::handle topk_ids, uintptr_t data,
               int64_t bytes) {
                const HeldInput ids = input("topk_ids", topk_ids);
                const std::vector<Place> place = {ids.place};
                run(w, {&place}, [&](Workspace& workspace) {
                    new (self) Schedule(workspace, ids.tensor, block_of(data, bytes));
                });
            },
            "workspace"_a, "topk_ids"_a, "data"_a, "bytes"_a,
            "In memory of the caller's, where the group computes, which outlives the schedule.")
        .def_static(
            "restored",
            [](SharedWorkspace& w, int64_t num_tokens, uintptr_t data, int64_t bytes) {
                return Schedule::restored(w.workspace, num_tokens, block_of(data, bytes));
            },
            "workspace"_a, "num_tokens"_a, "data"_a, "bytes"_a,
            "One whose memory, or a copy of it, is there: nothing is built.")
        .def(
            "tokens_per_expert",
            [](const Schedule& s) {
                const auto rows = s.tokens_per_expert();
                return std::vector<int32_t>(rows.begin(), rows.end());
            },
            "Rows of each local expert, [E_l]. On a GPU it waits.")
        .def("tokens_per_expert_device", &rows_of_experts, "workspace"_a,
             "The same where the group computes, without waiting: [E_l, 1] I32 for DLPack.");

    nb::class_<Context>(module, "Context",
                        "What a forward or recompute leaves for the backward of its schedule.")
        .def(nb::init<>())
        .def(
            "__init__",
            [](Context* self, uintptr_t data, int64_t bytes) {
                new (self) Context(block_of(data, bytes));
            },
            "data"_a, "bytes"_a,
            "In memory of the caller's, where the group computes, which outlives the context.")
        .def_static(
            "restored",
            [](SharedWorkspace& w, const Schedule& s, uintptr_t data, int64_t bytes) {
                return Context::restored(w.workspace, s, block_of(data, bytes));
            },
            "workspace"_a, "schedule"_a, "data"_a, "bytes"_a,
            "One whose memory, or a copy of it, a forward of the schedule's ids has filled.")
        .def_prop_ro("bytes", &Context::bytes);

    module.def("forward", &run_forward, "workspace"_a, "schedule"_a, "weights"_a, "inputs"_a,
               "out"_a, "context"_a.none() = nb::none(),
               "Writes out [T, H], BF16 or F32, and fills the context, without which nothing is\n"
               "kept. Collective. MokShapeError, MokTimeout.");
    module.def("recompute", &run_recompute, "workspace"_a, "schedule"_a, "weights"_a, "inputs"_a,
               "context"_a,
               "Fills the context from the inputs alone, to the forward's bits. Collective.");
    module.def(
        "backward",
        [](SharedWorkspace& w, const nb::tuple& saved, nb::handle d_out,
           const Held<InputGrads>& input_grads, const Held<WeightGrads>& weight_grads) {
            run_backward(w, saved, d_out, &input_grads, &weight_grads);
        },
        "workspace"_a, "saved"_a, "d_out"_a, "input_grads"_a, "weight_grads"_a,
        "All gradients of d_out [T, H]. saved: (schedule, weights, inputs, context) of the "
        "forward.\n"
        "Collective. MokShapeError, MokTimeout.");
    module.def(
        "backward_input",
        [](SharedWorkspace& w, const nb::tuple& saved, nb::handle d_out,
           const Held<InputGrads>& input_grads) {
            run_backward(w, saved, d_out, &input_grads, nullptr);
        },
        "workspace"_a, "saved"_a, "d_out"_a, "input_grads"_a,
        "Those of the inputs; the context then holds what wgrad needs. Collective.");
    module.def(
        "wgrad",
        [](SharedWorkspace& w, const nb::tuple& saved, nb::handle d_out,
           const Held<WeightGrads>& weight_grads) {
            run_backward(w, saved, d_out, nullptr, &weight_grads);
        },
        "workspace"_a, "saved"_a, "d_out"_a, "weight_grads"_a,
        "Those of the weights after backward_input: together the bits of backward. Collective.");
    module.def("shared_wgrad", &run_shared_wgrad, "workspace"_a, "saved"_a, "d_out"_a,
               "weight_grads"_a,
               "Those of the shared expert's weights alone, after backward_input. Not collective.");
}

}  // namespace mok::python
