"""`precision` of `moe` on the CPU: outputs and gradients beside those of BF16 and of a plain layer
in FP64, and when the weights are quantised."""

import threading

import pytest

torch = pytest.importorskip("torch")

import cases
import openmok
from openmok import _calls, _core, _fp8
from test_torch import (
    arguments,
    assert_same_bits,
    d_out_of,
    grads,
    in_fp64,
    leaves,
    plain_layer,
    trained,
)
from torch.utils.checkpoint import checkpoint

RECIPES = ["fp8_block", "mxfp8"]
FP8 = pytest.mark.parametrize("precision", RECIPES)


@pytest.fixture
def quantisations(monkeypatch):
    """The memories that weights were quantised into, one after the other."""
    seen = []

    class Watched:
        def __getattr__(self, name):
            return getattr(_core, name)

        def moe_quantize(self, workspace, operands, x, weights, fp8):
            seen.append(fp8)
            _core.moe_quantize(workspace, operands, x, weights, fp8)

    monkeypatch.setattr(_calls, "_core", Watched())
    return seen


def without_grads(made):
    for leaf in leaves(made).values():
        leaf.grad = None
    return made


def distance(found, right):
    found, right = found.double(), right.double()
    cosine = torch.nn.functional.cosine_similarity(found.flatten(), right.flatten(), 0)
    return ((found - right).norm() / right.norm()).item(), cosine.item()


@FP8
@pytest.mark.parametrize("more", [{}, {"biases": True}, {"shared": True}])
def test_gradients_beside_those_of_bf16_and_fp64(precision, more):
    made = arguments(200, **more)
    d_out = d_out_of(made)
    bf16_out, bf16 = trained(made, d_out)
    without_grads(made)
    out, found = trained(made | {"precision": precision}, d_out)
    right = in_fp64(made)
    expected = plain_layer(**right)
    expected.backward(d_out.double())
    pairs = {name: (found[name], bf16[name], leaf.grad) for name, leaf in leaves(right).items()}
    pairs["out"] = out, bf16_out, expected.detach()
    for name, (value, of_bf16, of_fp64) in pairs.items():
        if name.startswith("shared"):
            assert torch.equal(value, of_bf16), name  # always BF16
            continue
        for other in (of_bf16, of_fp64):
            error, cosine = distance(value, other)
            assert cosine > 0.99 and error < 0.13, (name, error, cosine)
        # E4M3 has 3 bits of fraction: it cannot be as near as BF16 is. A bias of down comes after
        # every product.
        if name not in ("down_bias", "topk_weights"):
            assert error > 0.01, (name, error)


def test_recipes_differ():
    made = arguments()
    outs = [openmok.moe(**made, precision=p)[0] for p in ("bf16", *RECIPES)]
    assert not torch.equal(outs[0], outs[1]) and not torch.equal(outs[1], outs[2])


@FP8
def test_numpy_has_the_same_bits(precision):
    made = arguments(64, shared=True)
    expected, _ = openmok.moe(**made, precision=precision)

    def array(value):
        if isinstance(value, tuple):
            return tuple(map(array, value))
        return value.detach().numpy()

    arrays = {name: array(value) for name, value in made.items()}
    found, _ = openmok.moe(**arrays, precision=precision)
    assert torch.equal(torch.from_numpy(found), expected.detach())


# ---- When weights are quantised -------------------------------------------------------------------
def test_once_between_two_steps_at_one_address(quantisations):
    made = arguments() | {"precision": "fp8_block"}
    d_out = d_out_of(made)
    for _ in range(2):
        trained(without_grads(made), d_out)
    assert len(quantisations) == 1
    optimizer = torch.optim.SGD([made["gate_up"], made["down"]], lr=0.1)
    for step in range(2, 5):
        optimizer.step()
        out, found = trained(without_grads(made), d_out)
        assert len(quantisations) == step and quantisations[-1] is quantisations[0]
        copies = made | {n: made[n].detach().clone().requires_grad_() for n in ("gate_up", "down")}
        right_out, right = trained(without_grads(copies), d_out)
        assert torch.equal(out, right_out)
        assert_same_bits(found, right)
        del quantisations[step:]


def test_whatever_torch_counts_as_a_write(quantisations):
    made = arguments() | {"precision": "mxfp8"}
    first, _ = openmok.moe(**made)
    with torch.no_grad():
        made["down"].mul_(2)
    second, _ = openmok.moe(**made)
    assert len(quantisations) == 2
    assert torch.equal(second, 2 * first)  # exact in E8M0
    made["down"].data.mul_(2)  # not counted
    assert torch.equal(openmok.moe(**made)[0], second)
    openmok.invalidate_quantized_weights()
    assert torch.equal(openmok.moe(**made)[0], 4 * first)
    assert len(quantisations) == 3


def test_a_step_between_forward_and_backward_changes_no_bits(quantisations):
    """Of another model's optimizer, as it may be."""
    made = arguments() | {"precision": "fp8_block"}
    d_out = d_out_of(made)
    _, expected = trained(made, d_out)
    out, _ = openmok.moe(**without_grads(made))
    other = torch.nn.Parameter(torch.zeros(3))
    other.grad = torch.ones(3)
    torch.optim.AdamW([other]).step()
    out.backward(d_out)
    assert_same_bits(grads(made), expected)


def test_weights_that_are_computed_are_quantised_on_every_call(quantisations):
    """Each may lie where the last one lay."""
    made = arguments() | {"precision": "fp8_block"}
    for factor in (1.0, 2.0, 4.0):
        scaled = made | {"down": made["down"] * factor}
        kept = openmok.moe(**made)[0] * factor
        assert torch.equal(openmok.moe(**scaled)[0], kept)
        del scaled


def test_two_layers_have_a_memory_each(quantisations):
    first, second = arguments(seed=1), arguments(seed=1)
    with torch.no_grad():
        second["down"].mul_(2)
    for made in (first, second, first, second):
        openmok.moe(**made, precision="fp8_block")
    assert len(quantisations) == 2 and quantisations[0] is not quantisations[1]


def test_memory_is_counted_and_goes_with_the_weights():
    made = arguments() | {"precision": "mxfp8"}
    openmok.moe(**made)
    one = _fp8.bytes_held()
    assert 0 < one < openmok.workspace_bytes()
    del made
    openmok.moe(**arguments(seed=4), precision="mxfp8")
    assert _fp8.bytes_held() == one
    openmok.clear_workspaces()
    assert openmok.workspace_bytes() == 0


def test_a_larger_workspace_takes_over():
    made = arguments(50) | {"precision": "fp8_block"}
    d_out = d_out_of(made)
    expected_out, expected = trained(made, d_out)
    out, _ = openmok.moe(**without_grads(made))
    held = _fp8.bytes_held()
    openmok.moe(**(arguments(300) | {n: made[n] for n in ("gate_up", "down", "precision")}))
    out.backward(d_out)
    assert torch.equal(out.detach(), expected_out)
    assert_same_bits(grads(made), expected)
    assert _fp8.bytes_held() == held


@FP8
def test_weights_without_versions(precision):
    expected, _ = openmok.moe(**arguments(), precision=precision)
    with torch.inference_mode():
        made = arguments()
        assert torch.equal(openmok.moe(**made, precision=precision)[0], expected)
        made["down"].mul_(0.5)
        assert torch.equal(openmok.moe(**made, precision=precision)[0], 0.5 * expected)


# ---- The ways that a call can go ------------------------------------------------------------------
@FP8
def test_one_compiled_graph_has_the_same_bits(precision):
    made = arguments(biases=True, shared=True) | {"precision": precision}
    d_out = d_out_of(made)
    expected_out, expected = trained(made, d_out)
    layer = torch.compile(
        lambda x: openmok.moe(**(made | {"x": x * 1.0}))[0], fullgraph=True, backend="aot_eager"
    )
    for _ in range(2):
        out = layer(without_grads(made)["x"])
        out.backward(d_out)
        assert torch.equal(out.detach(), expected_out)
        assert_same_bits(grads(made), expected)
    torch._dynamo.reset()


@FP8
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_and_copied_contexts(precision, use_reentrant):
    made = arguments() | {"precision": precision}
    d_out = d_out_of(made)
    _, expected = trained(made, d_out)
    layer = lambda x: openmok.moe(**(made | {"x": x}))[0]
    checkpoint(layer, without_grads(made)["x"], use_reentrant=use_reentrant).backward(d_out)
    assert_same_bits(grads(made), expected)
    without_grads(made)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        out, _ = openmok.moe(**made)
    out.backward(d_out)
    assert_same_bits(grads(made), expected)


@FP8
def test_forms_tunings_and_weight_gradients_apart(precision):
    made = arguments(200, shared=True) | {"precision": precision}
    d_out = d_out_of(made)
    expected_out, expected = trained(made, d_out)
    for options in (
        {"tuning": openmok.Tuning(macrobatch_rows=256, context_rows=128)},
        {"tuning": openmok.Tuning(fp8_dispatch=False)},
        {"tuning": openmok.Tuning(keep_x=True)},
        {"delayed_wgrads": []},
    ):
        out, _ = openmok.moe(**without_grads(made), **options)
        out.backward(d_out)
        for wgrad in options.get("delayed_wgrads", []):
            wgrad()
        assert torch.equal(out.detach(), expected_out)
        assert_same_bits(grads(made), expected)
    pair = made["gate_up"].detach().split(cases.I, 1)
    forms = {"gate_up": pair, "down": list(made["down"].detach())}
    assert torch.equal(openmok.moe(**(made | forms))[0], expected_out)


@FP8
def test_main_grad(precision):
    made = arguments(dtype=torch.bfloat16) | {"precision": precision}
    wide = arguments() | {"precision": precision}
    d_out = d_out_of(made)
    _, plain = trained(wide, d_out.float())
    for name in ("gate_up", "down"):
        made[name].main_grad = torch.full(made[name].shape, 0.5)
    openmok.moe(**made)[0].backward(d_out)
    for name in ("gate_up", "down"):
        assert torch.equal(made[name].main_grad, 0.5 + plain[name])


@FP8
def test_ranks_that_are_threads_have_the_bits_of_one(precision):
    made = arguments(90)
    d_out = d_out_of(made)
    expected_out, expected = trained(made | {"precision": precision}, d_out)
    groups, ends, found = openmok.Group.in_process(2), [0, 40, 90], [None] * 2

    def run(rank):
        tokens, experts = slice(*ends[rank : rank + 2]), slice(3 * rank, 3 * rank + 3)
        own = {n: made[n].detach()[tokens].clone() for n in ("x", "topk_weights")}
        own |= {n: made[n].detach()[experts].clone() for n in ("gate_up", "down")}
        for leaf in own.values():
            leaf.requires_grad_()
        out, _ = openmok.moe(
            **own,
            topk_ids=made["topk_ids"][tokens],
            group=groups[rank],
            precision=precision,
            tuning=openmok.Tuning(max_tokens=64),
        )
        out.backward(d_out[tokens])
        found[rank] = {"out": out.detach()} | {name: t.grad for name, t in own.items()}

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, value in (expected | {"out": expected_out}).items():
        assert torch.equal(torch.cat([rank[name] for rank in found]), value), name


@FP8
def test_the_module_trains(precision):
    torch.manual_seed(0)
    shape = openmok.LayerShape(cases.H, cases.I, cases.E, cases.K, cases.S, precision=precision)
    module = openmok.MoE(shape)
    plain = openmok.MoE(openmok.LayerShape(cases.H, cases.I, cases.E, cases.K, cases.S))
    plain.load_state_dict(module.state_dict())
    x = torch.from_numpy(cases.inputs(64)[0])
    losses = {}
    for name, layer in ("fp8", module), ("bf16", plain):
        optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-3)
        losses[name] = []
        for _ in range(15):
            optimizer.zero_grad()
            loss = (layer(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    assert losses["fp8"] != losses["bf16"]
    assert losses["fp8"][-1] < 0.7 * losses["fp8"][0]
    assert losses["fp8"][-1] == pytest.approx(losses["bf16"][-1], rel=0.05)


# ---- Errors -----------------------------------------------------------------------------------
def test_another_precision_is_refused():
    with pytest.raises(
        openmok.MokShapeError,
        match="precision: expected 'bf16', 'fp8_block' or 'mxfp8', found 'fp4'",
    ):
        openmok.moe(**arguments(), precision="fp4")
