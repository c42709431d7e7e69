"""Process groups and meshes of one rank, and calls in several orders, on one GPU."""

import socket
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from gpu_cases import E, arguments, d_out_of, without_grads
import openmok
from test_torch import assert_same_bits, grads, leaves, trained
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


@pytest.fixture
def job_of_one():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=0,
        world_size=1,
        device_id=torch.device("cuda", 0),
    )
    yield
    openmok.clear_workspaces()
    dist.destroy_process_group()


def test_groups_of_one(job_of_one):
    made = arguments(shared=True)
    d_out = d_out_of(made)
    expected_out, expected = trained(made, d_out)
    mesh = init_device_mesh("cuda", (1, 1), mesh_dim_names=("dp", "ep"))["ep"]
    for group in (dist.group.WORLD, mesh, openmok.group_name(mesh)):
        out, _ = openmok.moe(**without_grads(made), group=group)
        out.backward(d_out)
        assert torch.equal(out, expected_out)
        assert_same_bits(grads(made), expected)
    layer = torch.compile(
        lambda x: openmok.moe(**(made | {"x": x}), group=mesh)[0],
        fullgraph=True,
        backend="aot_eager",
    )
    assert torch.equal(layer(made["x"]), expected_out)
    torch._dynamo.reset()
    names = ("gate_up", "down")
    placed = {n: DTensor.from_local(made[n].detach(), mesh, [Shard(0)]) for n in names}
    placed = {n: torch.nn.Parameter(t) for n, t in placed.items()}
    out, _ = openmok.moe(**(without_grads(made) | placed), group=mesh)
    out.backward(d_out)
    for name, tensor in placed.items():
        assert torch.equal(tensor.grad.to_local(), expected[name]), name


def test_f1_f2_b1_b2():
    """Unequal numbers of tokens, a larger workspace between them."""
    first, second = arguments(300, seed=1), arguments(1500, seed=2)
    shared = {name: first[name] for name in ("gate_up", "down")}
    second |= shared
    d_outs = d_out_of(first), d_out_of(second)
    whole = [trained(without_grads(made), d) for made, d in zip((first, second), d_outs)]
    openmok.clear_workspaces()
    without_grads(first), without_grads(second)
    outs = [openmok.moe(**made)[0] for made in (first, second)]
    for out, d_out in zip(outs, d_outs):
        out.backward(d_out)
    for made, out, (right_out, right) in zip((first, second), outs, whole):
        assert torch.equal(out.detach(), right_out)
        assert torch.equal(made["x"].grad, right["x"])
    for name in shared:
        assert torch.equal(first[name].grad, whole[0][1][name] + whole[1][1][name]), name


def test_autocast_leaves_the_layer_alone():
    made = arguments(dtype=torch.float32)
    d_out = d_out_of(made)
    expected_out, expected = trained(made, d_out)
    without_grads(made)
    with torch.autocast("cuda", torch.float16):
        out, _ = openmok.moe(**made)
    out.backward(d_out)
    assert out.dtype == torch.float32 and torch.equal(out, expected_out)
    assert_same_bits(grads(made), expected)


def test_frozen_inputs_and_weights():
    made = arguments()
    made["down"].requires_grad_(False)
    made["x"].requires_grad_(False)
    openmok.moe(**made)[0].sum().backward()
    assert made["down"].grad is None and made["x"].grad is None
    assert made["gate_up"].grad.isfinite().all() and made["gate_up"].grad.shape[0] == E
    assert all(leaf.grad is not None for leaf in leaves(made).values() if leaf.requires_grad)


def test_importing_makes_no_context():
    program = """
import ctypes, openmok
assert "cuda" in openmok.built_backends()
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuInit(0) == 0
flags, active = ctypes.c_uint(), ctypes.c_int(-1)
assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
print(active.value)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr


def explicit_step(group, part, d_out, num_experts):
    """Output and gradients of one rank by the explicit calls, on the current stream."""
    x, ids, weights = part["x"].detach(), part["topk_ids"], part["topk_weights"].detach()
    gate, up = part["gate_up"].detach().chunk(2, 1)
    down = part["down"].detach()
    shape = openmok.LayerShape(x.shape[1], gate.shape[1], num_experts, ids.shape[1])
    workspace = openmok.Workspace(group, shape, openmok.Tuning(), 512)
    if x.is_cuda:
        workspace.set_stream(torch.cuda.current_stream().cuda_stream)
    schedule = openmok.Schedule(workspace, ids)
    context, out = openmok.Context(), torch.empty_like(x)
    own = openmok.Weights(gate=gate, up=up, down=down)
    inputs = openmok.Inputs(x=x, topk_weights=weights)
    openmok.forward(workspace, schedule, own, inputs, out, context)
    grads = {"x": torch.empty_like(x), "topk_weights": torch.empty_like(weights)}
    gate_up = torch.empty_like(part["gate_up"])
    d_gate, d_up = gate_up.detach().chunk(2, 1)
    grads_of_weights = {"gate": d_gate, "up": d_up, "down": torch.empty_like(down)}
    openmok.backward(
        workspace,
        (schedule, own, inputs, context),
        d_out,
        openmok.InputGrads(**grads),
        openmok.WeightGrads(**grads_of_weights),
    )
    workspace.synchronize()
    return grads | {"out": out, "gate_up": gate_up.detach(), "down": grads_of_weights["down"]}


def check_explicit_ranks(groups, made, d_out, stream):
    expected_out, expected = trained(made, d_out)
    num_experts, tokens = made["down"].shape[0], len(made["x"])
    found, errors = [None] * 2, []

    def run(rank):
        own = slice(rank * tokens // 2, (rank + 1) * tokens // 2)
        local = slice(rank * num_experts // 2, (rank + 1) * num_experts // 2)
        by_expert = ("gate_up", "down")
        part = {n: v[local] if n in by_expert else v[own] for n, v in made.items()}
        try:
            with torch.no_grad(), stream():
                found[rank] = explicit_step(groups[rank], part, d_out[own], num_experts)
        except Exception as error:  # the test looks at it
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    for name, right in (expected | {"out": expected_out}).items():
        assert torch.equal(torch.cat([rank[name] for rank in found]), right), name


def test_virtual_ranks_have_the_gradients_of_one():
    made = arguments(600)
    d_out = d_out_of(made)
    torch.cuda.synchronize()
    groups = openmok.Group.cuda_virtual(2, 0)
    check_explicit_ranks(groups, made, d_out, lambda: torch.cuda.stream(torch.cuda.Stream()))
