"""The operators as torch's compiler and its checks see them."""

import pytest

torch = pytest.importorskip("torch")

import cases
import openmok
from openmok._calls import scalars_of
from openmok._operands import layout_of, operands_of, weights_of
from openmok._plan import Options
from openmok._sizes import Extent, context_bytes, schedule_bytes
from test_torch import arguments, assert_same_bits, d_out_of, grads, leaves, trained


@pytest.fixture(autouse=True)
def fresh_compiler():
    yield
    torch._dynamo.reset()


def compiled(made, d_out, **options):
    for leaf in leaves(made).values():
        leaf.grad = None

    @torch.compile(fullgraph=True, **options)
    def layer(x):
        # Neighbours in the graph, exact in every type.
        out, rows = openmok.moe(**(made | {"x": x * 1.0}))
        return out * 2.0, rows

    out, rows = layer(made["x"])
    out.backward(d_out / 2)
    return out.detach() / 2, rows, grads(made)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("more", [{}, {"biases": True}, {"shared": True}])
def test_one_graph_gives_the_same_bits(backend, more):
    made = arguments(**more)
    d_out = d_out_of(made)
    expected_out, expected = trained(made, d_out)
    out, rows, found = compiled(made, d_out, backend=backend)
    assert torch.equal(out, expected_out)
    ids = made["topk_ids"]
    assert torch.equal(rows, torch.bincount(ids[ids >= 0], minlength=cases.E).int())
    assert_same_bits(found, expected)


def test_one_graph_for_any_number_of_tokens():
    shapes = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    weights = {k: v for k, v in arguments().items() if k in ("gate_up", "down")}

    @torch.compile(fullgraph=True, backend=shapes, dynamic=True)
    def layer(x, ids, router):
        return openmok.moe(x, ids, router, **weights)[0]

    for tokens in (100, 37, 260, 5):
        made = arguments(tokens, seed=tokens) | weights
        expected, _ = openmok.moe(**made)
        assert torch.equal(layer(made["x"], made["topk_ids"], made["topk_weights"]), expected)
    assert shapes.frame_count == 1


def test_the_module_in_one_graph():
    torch.manual_seed(0)
    shape = openmok.LayerShape(cases.H, cases.I, cases.E, cases.K, cases.S)
    module = openmok.MoE(shape, score="sigmoid", shared_gate=True, selection_bias=True)
    x = torch.from_numpy(cases.inputs(48)[0]).requires_grad_()
    expected = module(x)
    expected.square().sum().backward()
    right, x.grad = x.grad, None
    found = torch.compile(module, fullgraph=True, backend="aot_eager")(x)
    found.square().sum().backward()
    assert torch.equal(found, expected) and torch.equal(x.grad, right)


def test_a_group_by_its_name_in_a_graph():
    made = arguments()
    name = openmok.group_name(group := openmok.Group.alone())
    expected, _ = openmok.moe(**made, group=group)
    layer = torch.compile(
        lambda: openmok.moe(**made, group=name), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(layer()[0], expected)


def test_inference_keeps_nothing_in_a_graph():
    made = arguments()
    layer = torch.compile(lambda: openmok.moe(**made)[0], fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        out = layer()
    assert not out.requires_grad
    assert torch.equal(out, openmok.moe(**made)[0])


def operator_arguments(made, keep=True, **options):
    weights = weights_of(
        *(made.get(name) for name in ("gate_up", "down", "gate_up_bias", "down_bias", "shared"))
    )
    return (
        made["x"],
        made["topk_ids"],
        made["topk_weights"],
        made.get("shared_weights"),
        weights.tensors,
        *scalars_of("", weights.operands, Options(**options)),
        keep,
    )


@pytest.fixture
def filled_memory():
    """Fresh tensors have defined contents, and so have the parts of blocks that nobody reads."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "more, precision",
    [({}, "bf16"), ({"biases": True}, "bf16"), ({"shared": True}, "bf16"), ({}, "mxfp8")],
)
def test_torchs_own_checks_of_the_operators(more, precision, filled_memory):
    made = arguments(20, **more)
    forward = operator_arguments(made, precision=precision)
    torch.library.opcheck(torch.ops.openmok.moe.default, forward)
    with torch.no_grad():
        _, _, kept = torch.ops.openmok.moe(*forward)
        needs = [True, True, "shared_weights" in made, *([True] * len(forward[4]))]
        backward = (*forward[:-1], d_out_of(made), kept, needs)
        detached = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach(), backward)
    torch.library.opcheck(torch.ops.openmok.moe_backward.default, detached)


def test_a_second_derivative_is_refused():
    made = arguments(10)
    out, _ = openmok.moe(**made)
    (d_x,) = torch.autograd.grad(out.sum(), made["x"], create_graph=True)
    with pytest.raises(openmok.MokError, match="expected a first derivative"):
        d_x.sum().backward()


def test_a_backward_of_a_forward_that_kept_nothing_is_refused():
    out = torch.ops.openmok.moe(*operator_arguments(arguments(10), keep=False))[0]
    with pytest.raises(openmok.MokError, match="expected keep=True"):
        out.sum().backward()


def test_layouts_come_back():
    made = arguments(biases=True, shared=True)
    made |= {"down": list(made["down"]), "gate_up": made["gate_up"].split(cases.I, 1)}
    operands = weights_of(
        *(made.get(name) for name in ("gate_up", "down", "gate_up_bias", "down_bias", "shared"))
    ).operands
    assert operands_of(layout_of(operands)) == tuple(operands)


@pytest.mark.parametrize("tuning", [
    openmok.Tuning(),
    openmok.Tuning(macrobatch_rows=256, context_rows=384, keep_x=True),
    openmok.Tuning(macrobatch_rows=1024, context_rows=0),
])
@pytest.mark.parametrize("num_tokens", [0, 1, 127, 300])
@pytest.mark.parametrize("num_experts", [1, 6])
@pytest.mark.parametrize("precision", ["bf16", "fp8_block", "mxfp8"])
def test_the_sizes_of_blocks_are_enough(tuning, num_tokens, num_experts, precision):
    shape = openmok.LayerShape(
        cases.H, cases.I, num_experts, 1, cases.S, precision=precision
    )
    workspace = openmok.Workspace(openmok.Group.alone(), shape, tuning, 512)
    extent = Extent(1, num_experts, num_tokens)
    for found, least in (
        (schedule_bytes(extent, shape, tuning), workspace.schedule_bytes(num_tokens)),
        (context_bytes(extent, shape, tuning), workspace.context_bytes(num_tokens)),
    ):
        assert least <= found <= least + 512
