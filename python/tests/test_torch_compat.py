"""`openmok.compat`: the reference's calls against a plain layer in FP64."""

from dataclasses import fields
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import cases
import openmok
from bounds import assert_total_within_bounds, assert_within_bounds
from openmok import compat
from test_torch import arguments, d_out_of, in_fp64, leaves, plain_layer

CONFIG = compat.MoKConfig(minibatch_size=256, macrobatch_size=1024)


def setting(made):
    workspace = compat.get_workspace(
        CONFIG,
        None,
        device="cpu",
        num_local_tokens=made["x"].shape[0],
        hidden_size=cases.H,
        topk=cases.K,
    )
    schedule = compat.build_schedule(
        workspace, CONFIG, made["topk_ids"], num_local_experts=cases.E
    )
    return workspace, schedule


def weights_of(made):
    """Shared gate, up, down, then routed ones."""
    shared = made.get("shared")
    parts = [*shared[0].detach().chunk(2, 0), shared[1].detach()] if shared else [None] * 3
    return [*parts, *made["gate_up"].detach().chunk(2, 1), made["down"].detach()]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("recompute", [False, True])
def test_forward_and_backward(shared, limit, recompute):
    made = arguments(100, dtype=torch.bfloat16, shared=shared)
    if shared:
        made["shared_weights"] = torch.ones(100, requires_grad=True)
    d_out = d_out_of(made)
    x, router, weights = made["x"].detach(), made["topk_weights"].detach(), weights_of(made)
    workspace, schedule = setting(made)
    out, ctx = compat.forward(CONFIG, workspace, schedule, x, router, *weights, limit)
    if recompute:
        ctx = compat.recompute_forward_context(
            CONFIG, workspace, schedule, x, *weights[:2], *weights[3:5], limit
        )
    found = compat.backward(
        CONFIG, workspace, schedule, ctx, d_out, x, router, *weights, limit
    )
    # The layer of `moe`, which other tests compare with a plain one, has the same bits.
    expected, _ = openmok.moe(**made, limit=limit)
    expected.backward(d_out)
    assert torch.equal(out, expected.detach())
    gate, up = made["gate_up"].grad.chunk(2, 1)
    right = [made["x"].grad, made["topk_weights"].grad, gate, up, made["down"].grad]
    right += [*made["shared"][0].grad.chunk(2, 0), made["shared"][1].grad] if shared else []
    assert len(found) == 8 and found[5:] == (None,) * 3 or shared
    for value, known in zip(found, right):
        assert value.dtype == known.dtype and torch.equal(value, known)
    if limit is None:
        fp64 = in_fp64(made)
        plain = plain_layer(**fp64)
        plain.backward(d_out.double())
        assert_within_bounds("out", out.float(), plain.detach())
        assert_within_bounds("d_down", found[4].float(), fp64["down"].grad)
        assert_total_within_bounds("d_router", found[1], fp64["topk_weights"].grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_go_on_into_main_grads(dtype, shared):
    made = arguments(100, dtype=torch.bfloat16, shared=shared)
    if shared:
        made["shared_weights"] = torch.ones(100, requires_grad=True)
    d_out = d_out_of(made)
    x, router, weights = made["x"].detach(), made["topk_weights"].detach(), weights_of(made)
    workspace, schedule = setting(made)
    _, ctx = compat.forward(CONFIG, workspace, schedule, x, router, *weights)
    call = CONFIG, workspace, schedule, ctx, d_out, x, router, *weights
    # What `moe` adds to main_grad, which other tests compare with a plain layer.
    parts = {"gate_up": made["gate_up"], "down": made["down"]}
    if shared:
        parts |= {"shared 0": made["shared"][0], "shared 1": made["shared"][1]}
    for leaf in parts.values():
        leaf.main_grad = torch.full(leaf.shape, 0.5, dtype=dtype)
    openmok.moe(**made)[0].backward(d_out)

    gate, up = (torch.full_like(h, 0.5) for h in made["gate_up"].main_grad.chunk(2, 1))
    buffers = [None, gate, None, up, None, torch.full_like(made["down"].main_grad, 0.5)]
    if shared:
        halves = [torch.full_like(h, 0.5) for h in made["shared"][0].main_grad.chunk(2, 0)]
        buffers[0], buffers[2] = halves
        buffers[4] = torch.full_like(made["shared"][1].main_grad, 0.5)
    found = compat.backward(*call, main_grads=tuple(buffers))
    assert found[2] is gate and found[3] is up and found[4] is buffers[5]
    assert torch.equal(torch.cat([gate, up], 1), made["gate_up"].main_grad)
    assert torch.equal(buffers[5], made["down"].main_grad)
    if shared:
        assert torch.equal(torch.cat(halves), made["shared"][0].main_grad)
        assert torch.equal(buffers[4], made["shared"][1].main_grad) and found[7] is buffers[4]
    with pytest.raises(openmok.MokShapeError, match="main_grads: expected 6 buffers"):
        compat.backward(*call, main_grads=buffers[:4])
    with pytest.raises(openmok.MokShapeError, match="main_grads: expected buffers of gate, up, do"):
        compat.backward(*call, main_grads=(*buffers[:5], None))
    with pytest.raises(openmok.MokShapeError, match="main_grad_storage_tables: expected tables"):
        compat.backward(*call, main_grads=tuple(buffers), main_grad_storage_tables=(1, 2, 3))


def test_the_schedule_counts_rows():
    made = arguments(100)
    _, schedule = setting(made)
    ids = made["topk_ids"]
    expected = torch.bincount(ids[ids >= 0], minlength=cases.E).int()
    assert torch.equal(schedule.tokens_per_expert, expected)
    assert schedule.num_tokens.tolist() == [expected.sum()]


def test_a_step_goes_on_from_the_tensors_of_schedule_and_context():
    """As an adapter keeps them: fields one by one through hooks on saved tensors."""

    def copied(kept):
        values = {field.name: getattr(kept, field.name) for field in fields(kept)}
        assert all(isinstance(value, torch.Tensor) for value in values.values())
        return type(kept)(**{name: value.clone() for name, value in values.items()})

    made = arguments(100, dtype=torch.bfloat16)
    d_out, inputs = d_out_of(made), (made["x"].detach(), made["topk_weights"].detach())
    weights = weights_of(made)
    workspace, schedule = setting(made)
    _, ctx = compat.forward(CONFIG, workspace, schedule, *inputs, *weights)
    expected = compat.backward(CONFIG, workspace, schedule, ctx, d_out, *inputs, *weights)
    kept = copied(schedule), copied(ctx)
    schedule.block.zero_(), ctx.block.zero_()
    compat.clear_workspace_cache()
    found = compat.backward(CONFIG, setting(made)[0], *kept, d_out, *inputs, *weights)
    assert all(torch.equal(f, e) for f, e in zip(found[:5], expected))


def test_one_workspace_for_equal_arguments():
    made = arguments(100)
    assert setting(made)[0] is setting(made)[0]
    first = setting(made)[0]
    compat.clear_workspace_cache()
    assert setting(made)[0] is not first


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"minibatch_size": 100}, "minibatch_size: expected a multiple of 256 above 0, found 100"),
        ({"macrobatch_size": 4095}, "macrobatch_size: expected a multiple of 4096 above 0"),
        ({"bwd_num_comm_sms": 3}, "bwd_num_comm_sms: expected an even number above 0, found 3"),
        ({"schedule_capacity_multiplier": float("nan")}, "schedule_capacity_multiplier: expected"),
    ],
)
def test_configurations_that_are_refused(fields, sentence):
    with pytest.raises(openmok.MokShapeError, match=sentence):
        compat.MoKConfig(**fields)


def test_the_alias_is_installed_on_request_only():
    program = """
import importlib.util, openmok, openmok.compat
assert importlib.util.find_spec("mok") is None
openmok.compat.as_mok()
import mok
from mok.functional import MoKConfig, get_workspace
from mok.ops import make_routed_weight_storage_table_bf16, mxfp8_quantize
assert MoKConfig is openmok.compat.MoKConfig and mok.forward is openmok.compat.forward
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    program = """
import sys, types
sys.modules["mok"] = types.ModuleType("mok")
import openmok.compat
try:
    openmok.compat.as_mok()
except openmok.MokError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "mok: expected it not to be imported yet, found another package's\n"
