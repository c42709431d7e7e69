"""`openmok.compat` with routed weights as Megatron-LM's adapter hands them in: gate and up as one
matrix, experts in memories of their own, MXFP8 whose transposed elements lie as the matrix does."""

import pytest

torch = pytest.importorskip("torch")

import cases
import openmok
import test_torch_compat_mxfp8 as mxfp8
from openmok import compat
from test_torch import arguments, d_out_of
from test_torch_compat import CONFIG, setting, weights_of


def parts(seed=0):
    """A layer's call: what stands before the weights, shared ones, gate_up, down."""
    made = arguments(100, seed=seed, dtype=torch.bfloat16, shared=True)
    workspace, schedule = setting(made)
    inputs = made["x"].detach(), made["topk_weights"].detach()
    shared = weights_of(made)[:3]
    return workspace, schedule, inputs, shared, made["gate_up"].detach(), made["down"].detach()


def step(call, routed, recompute=False, of_backward=None, **more):
    """Output, then the eight gradients."""
    workspace, schedule, inputs, shared, *_ = call
    setup = CONFIG, workspace, schedule
    out, ctx = compat.forward(*setup, *inputs, *shared, *routed)
    if recompute:
        ctx = compat.recompute_forward_context(*setup, inputs[0], *shared[:2], *routed[:2])
    d_out = d_out_of({"x": inputs[0]})
    weights = routed if of_backward is None else of_backward
    return out, *compat.backward(*setup, ctx, d_out, *inputs, *shared, *weights, **more)


def assert_same(found, expected):
    """Gate's and up's gradients are one matrix in `found`, twice."""
    out, d_x, d_router, gate, up, *others = found
    assert gate is up
    halves = gate.chunk(2, 1)
    for value, known in zip((out, d_x, d_router, *halves, *others), expected, strict=True):
        assert value.dtype == known.dtype and torch.equal(value, known)


def apart(stacked, in_one_storage):
    """Experts of a matrix, in memories of their own or in one with a gap behind each."""
    if not in_one_storage:
        return [expert.clone() for expert in stacked]
    wider = stacked.new_full((len(stacked), stacked.shape[1] + 8, *stacked.shape[2:]), 7.0)
    wider[:, : stacked.shape[1]] = stacked
    return [expert[: stacked.shape[1]] for expert in wider]


def split(stacked, in_one_storage):
    experts = apart(stacked, in_one_storage)
    table = compat.make_routed_weight_storage_table_bf16(experts)
    return compat.SplitRoutedWeight(data=experts[0], storage_table=table)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("form", ["one tensor", "one storage", "memories"])
def test_gate_and_up_in_one(form, recompute):
    call = parts()
    gate_up, down = call[-2:]
    expected = step(call, (*gate_up.chunk(2, 1), down), recompute)
    if form == "one tensor":
        # Equal views count as the same matrix too.
        routed = gate_up, gate_up.view_as(gate_up), down
    else:
        both = split(gate_up, form == "one storage")
        routed = both, both, split(down, form == "one storage")
    assert_same(step(call, routed, recompute), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_main_grads_of_gate_and_up_in_one(dtype):
    call = parts()
    gate_up, down = call[-2:]

    def buffers(*tensors):
        return [torch.full(t.shape, 0.5, dtype=dtype) for t in tensors]

    def order(gate, up, routed_down, shared):
        return shared[0], gate, shared[1], up, shared[2], routed_down

    gate, up = gate_up.chunk(2, 1)
    known, known_shared = buffers(gate, up, down), buffers(*call[3])
    step(call, (gate, up, down), main_grads=order(*known, known_shared))
    (both, of_down), shared = buffers(gate_up, down), buffers(*call[3])
    found = step(call, (gate_up, gate_up, down), main_grads=order(both, both, of_down, shared))
    assert found[3] is both and found[4] is both and found[5] is of_down
    assert torch.equal(both, torch.cat(known[:2], 1)) and torch.equal(of_down, known[2])
    for value, right in zip(shared, known_shared):
        assert torch.equal(value, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_one_storage", [False, True])
def test_main_grads_of_experts_apart(dtype, in_one_storage):
    """Two steps, which add to what the buffers hold, with one rounding each."""
    call = parts()
    gate_up, down = call[-2:]
    shared = [torch.zeros(t.shape) for t in call[3]]
    known = [torch.full(t.shape, 0.5, dtype=dtype) for t in (gate_up, down)]
    order = lambda both, of_down: (shared[0], both, shared[1], both, shared[2], of_down)
    experts = [apart(t, in_one_storage) for t in known]
    tables = [compat.make_routed_d_weight_storage_table(e) for e in experts]
    weights = split(gate_up, in_one_storage), split(down, in_one_storage)
    for _ in range(2):
        step(call, (gate_up, gate_up, down), main_grads=order(*known))
        step(
            call,
            (weights[0], weights[0], weights[1]),
            main_grads=order(experts[0][0], experts[1][0]),
            main_grad_storage_tables=(tables[0], tables[0], tables[1]),
        )
    for value, right in zip(experts, known):
        assert torch.equal(torch.stack(value), right)
    if in_one_storage:  # nothing was written between the experts
        assert (experts[0][0]._base[:, gate_up.shape[1] :] == 7.0).all()


def test_what_is_refused():
    call = parts()
    gate_up, down = call[-2:]

    def refused(sentence, routed, **more):
        with pytest.raises(openmok.MokShapeError, match=sentence):
            step(call, routed, **more)

    odd = gate_up[:, :-1]
    refused(r"gate: expected gate, then up in dimension 1, found shape \[6, 79, 64\]",
            (odd, odd, down))
    both = split(gate_up, False)
    refused("routed weights: expected tensors or tuples, found both", (both, both, (down, down)))
    table = compat.make_routed_d_weight_storage_table(list(gate_up.float()))
    refused("main_grad_storage_tables: expected main_grads too, found none",
            (both, both, down), main_grad_storage_tables=(table, table, table))
    buffers = [torch.zeros(t.shape) for t in call[3]]
    six = buffers[0], table.tensors[0], buffers[1], table.tensors[0], buffers[2], down.float()
    refused(r"main_grad_storage_tables: expected 3 \(gate, up, down\), found 2",
            (both, both, down), main_grads=six, main_grad_storage_tables=(table, table))
    with pytest.raises(openmok.MokShapeError, match="storage table: expected a tensor of each"):
        compat.make_routed_weight_storage_table_bf16([])
    with pytest.raises(openmok.MokShapeError, match=r"storage table: expected tensors \[80, 64\] t"):
        compat.make_routed_weight_storage_table_bf16([gate_up[0], down[0]])


# ---- A gate on the shared expert's output ------------------------------------------------------
@pytest.mark.parametrize("into_main_grad", [False, True])
def test_a_gate_on_the_shared_experts_output(into_main_grad):
    """Against the same gate through autograd, in F32, around `moe`."""
    made = arguments(100, dtype=torch.bfloat16, shared=True)
    d_out = d_out_of(made)
    gate = torch.randn(1, made["x"].shape[1], generator=torch.Generator().manual_seed(5)) * 0.2
    gate = gate.bfloat16().requires_grad_()
    values = torch.nn.functional.linear(made["x"].float(), gate.float()).sigmoid().squeeze(-1)
    expected, _ = openmok.moe(**(made | {"shared_weights": values}))
    expected.backward(d_out)

    workspace, schedule = setting(made)
    call = workspace, schedule, (made["x"].detach(), made["topk_weights"].detach())
    shared, routed = weights_of(made)[:3], weights_of(made)[3:]
    setup = CONFIG, *call[:2]
    with torch.autocast("cpu", torch.bfloat16):
        out, ctx = compat.forward(
            *setup, *call[2], *shared, *routed, shared_output_gate_weight=gate
        )
        buffer = torch.full((1, cases.H), 0.25) if into_main_grad else None
        found = compat.backward(
            *setup, ctx, d_out, *call[2], *shared, *routed, shared_output_gate_weight=gate,
            shared_output_gate_main_grad=buffer,
        )
    assert torch.equal(out, expected.detach()) and len(found) == 9
    d_gate = found[8]
    if into_main_grad:
        assert d_gate is buffer
        d_gate = d_gate - 0.25
    # Autograd rounds the gate's gradient, and adds the two parts of d_x, in BF16.
    for value, known in (d_gate, gate.grad), (found[0], made["x"].grad):
        error = (value.double() - known.double()).norm() / known.double().norm()
        assert value.shape == known.shape and error < 5e-3
    assert d_gate.dtype == torch.float32
    right = [made["topk_weights"].grad, *made["gate_up"].grad.chunk(2, 1), made["down"].grad]
    right += [*made["shared"][0].grad.chunk(2, 0), made["shared"][1].grad]
    for value, known in zip(found[1:8], right, strict=True):
        assert torch.equal(value, known)


def test_gates_that_are_refused():
    made = arguments(100, dtype=torch.bfloat16)
    inputs, weights = (made["x"].detach(), made["topk_weights"].detach()), weights_of(made)
    workspace, schedule = setting(made)
    gate = torch.zeros(1, cases.H)

    def refused(sentence, **more):
        with pytest.raises(openmok.MokShapeError, match=sentence):
            compat.forward(CONFIG, workspace, schedule, *inputs, *weights, **more)

    refused("expected shared weights too, found none", shared_output_gate_weight=gate)
    call = parts()
    with pytest.raises(openmok.MokShapeError, match=r"expected shape \[1, 64\], found \[64\]"):
        compat.forward(CONFIG, *call[:2], *call[2], *call[3], *call[4].chunk(2, 1), call[5],
                       shared_output_gate_weight=gate[0])
    with pytest.raises(openmok.MokShapeError, match="expected shared_output_gate_weight too"):
        step(call, (*call[4].chunk(2, 1), call[5]), shared_output_gate_main_grad=gate)


# ---- MXFP8 ------------------------------------------------------------------------------------
def native(parts, is_down):
    """mxfp8_quantize's four with transposed elements where the matrix has them, and the mark."""
    elements, scales, elements_t, scales_t = parts
    there = elements_t.transpose(-1, -2).contiguous()
    return (there, scales_t, True) if is_down else (elements, scales, there, scales_t, True)


def split_mxfp8(parts, is_native):
    elements, scales, elements_t, scales_t = parts
    there = elements_t.transpose(-1, -2).contiguous() if is_native else elements_t
    # Each expert's scales have a dimension of 1 in front, as an adapter makes them one by one.
    experts = [[t.clone() for t in tensor] for tensor in (elements, there)]
    of_scales = [[t.clone().unsqueeze(0) for t in tensor] for tensor in (scales, scales_t)]
    tables = [compat.make_routed_weight_storage_table_mxfp8(e) for e in experts]
    scale_tables = [compat.make_routed_scale_storage_table(e) for e in of_scales]
    return compat.SplitRoutedWeight(
        data=experts[0][0],
        storage_table=tables[0],
        scale=of_scales[0][0],
        scale_storage_table=scale_tables[0],
        scale_tensors=tuple(of_scales[0]),
        transposed_data=experts[1][0],
        transposed_scale=of_scales[1][0],
        transposed_storage_table=tables[1],
        transposed_scale_storage_table=scale_tables[1],
        transposed_scale_tensors=tuple(of_scales[1]),
        native_columnwise=is_native,
    )


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("form", ["tuples", "native tuples", "split", "native split"])
def test_mxfp8_of_gate_and_up_in_one(form, recompute):
    workspace, schedule, made, inputs, shared = mxfp8.setting()
    call = workspace, schedule, inputs, shared
    expected = step(
        call, mxfp8.quantized(made, False), recompute, of_backward=mxfp8.quantized(made, True)
    )
    both, down = (
        compat.mxfp8_quantize(made[name].detach(), True, True) for name in ("gate_up", "down")
    )
    if "split" in form:
        one, other = (split_mxfp8(p, form.startswith("native")) for p in (both, down))
        forward = backward = one, one, other
    else:
        of_forward = both[:2]
        forward = of_forward, of_forward, down[:2]
        of_backward = native(both, False) if form.startswith("native") else both
        of_down = native(down, True) if form.startswith("native") else down[2:]
        backward = of_backward, of_backward, of_down
    assert_same(step(call, forward, recompute, of_backward=backward), expected)


def test_mxfp8_halves_must_be_whole_tiles():
    workspace, schedule, made, inputs, shared = mxfp8.setting()
    narrow = compat.mxfp8_quantize(made["gate_up"].detach()[:, :128].contiguous(), True, False)[:2]
    down = compat.mxfp8_quantize(made["down"].detach(), True, False)[:2]
    with pytest.raises(openmok.MokShapeError, match="gate: expected gate, then up, of multiples of"):
        step((workspace, schedule, inputs, shared), (narrow, narrow, down))
