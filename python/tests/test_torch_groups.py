"""Process groups of torch.distributed and device meshes as the layer's group, on the CPU."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import cases
import openmok
from openmok._groups import group_of, place_of
from test_torch import arguments

# Each rank of a job of processes: what it finds, one line each.
PROGRAM = """
import torch, torch.distributed as dist, openmok
from test_torch import arguments
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "ep"))
rank, made = dist.get_rank(), arguments(20)
alone = [dist.new_group([r]) for r in range(2)][rank]
expected, _ = openmok.moe(**made)
print("alone", torch.equal(openmok.moe(**made, group=alone)[0], expected))
module = openmok.MoE(openmok.LayerShape(64, 40, 5, 2), group=mesh["ep"])
print("experts", module.experts.down_proj.shape[0] == 3 - rank)
for group in alone, init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "ep"))["ep"]:
    layer = torch.compile(
        lambda x: openmok.moe(**(made | {"x": x}), group=group)[0], fullgraph=True,
        backend="aot_eager",
    )
    print("compiled", torch.equal(layer(made["x"]), expected))
placed = [
    torch.nn.Parameter(distribute_tensor(made[name].detach(), mesh["dp"], [Shard(0)]))
    for name in ("gate_up", "down")
]
gate_up, down = placed
out, _ = openmok.moe(**(made | {"gate_up": gate_up, "down": down}))
out.sum().backward()
expected.sum().backward()
print("dtensors", torch.equal(out, expected), *[
    isinstance(p.grad, DTensor) and torch.equal(p.grad.to_local(), made[name].grad)
    for p, name in zip(placed, ("gate_up", "down"))
])
try:
    whole = distribute_tensor(made["down"].detach(), mesh["dp"], [Replicate()])
    openmok.moe(**(made | {"down": whole}))
except openmok.MokShapeError as error:
    print(error)
for name, group in ("world", dist.group.WORLD), ("mesh", mesh["ep"]), ("whole", mesh):
    try:
        openmok.moe(**made, group=group, num_experts=12)
        print(name, "no error")
    except (openmok.MokError, openmok.MokShapeError) as error:
        print(name, error)
dist.destroy_process_group()
"""


def test_groups_of_processes_on_the_cpu(tmp_path):
    """One rank each runs; several are refused with the reason: the CPU's ranks are threads."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    tests = os.path.dirname(__file__)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(openmok.MeetingPoint.listen("localhost").port),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program)],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        out, error = rank.communicate(timeout=200)
        assert rank.returncode == 0, error
        sentence = (
            "group: expected tensors on a GPU for a process group of {} ranks, found tensors on "
            "the CPU, whose ranks are threads of one process"
        )
        assert out.splitlines() == [
            "alone True",
            "experts True",
            "compiled True",
            "compiled True",
            "dtensors True True True",
            "down: expected a DTensor of placement (Shard(0),), found a DTensor of placement "
            "(Replicate(),)",
            "world " + sentence.format(2),
            "mesh " + sentence.format(2),
            "whole group: expected a DeviceMesh of one dimension, found one of 2; mesh[NAME] is "
            "one of its dimensions",
        ]


def test_what_is_no_group():
    with pytest.raises(TypeError, match="group: expected an openmok.Group, a process group"):
        openmok.moe(**arguments(4), group=3)
    with pytest.raises(openmok.MokError, match="expected the name of a group that exists"):
        openmok.moe(**arguments(4), group="openmok:9999")


def test_groups_by_name():
    groups = openmok.Group.in_process(3)
    names = [openmok.group_name(group) for group in groups]
    assert len(set(names)) == 3 and names == [openmok.group_name(group) for group in groups]
    assert [place_of(name) for name in names] == [(r, 3) for r in range(3)]
    assert [group_of(name, None) for name in names] == groups
    assert openmok.group_name(None) == "" and place_of("") == (0, 1)


def test_ranks_that_are_threads_have_gradients():
    """The same bits as one rank, through autograd on both."""
    import threading

    made = arguments(90)
    out, _ = openmok.moe(**made)
    generator = torch.Generator().manual_seed(4)
    d_out = torch.randn(out.shape, generator=generator).bfloat16().float()
    out.backward(d_out)
    groups, ends, found = openmok.Group.in_process(2), [0, 40, 90], [None] * 2

    def run(rank):
        tokens = slice(*ends[rank : rank + 2])
        experts = slice(rank * cases.E // 2, (rank + 1) * cases.E // 2)
        own = {
            "x": made["x"][tokens],
            "topk_weights": made["topk_weights"][tokens],
            "gate_up": made["gate_up"][experts],
            "down": made["down"][experts],
        }
        own = {name: t.detach().clone().requires_grad_() for name, t in own.items()}
        out, _ = openmok.moe(
            **own,
            topk_ids=made["topk_ids"][tokens],
            group=groups[rank],
            tuning=openmok.Tuning(max_tokens=64),
        )
        out.backward(d_out[tokens])
        found[rank] = {"out": out.detach()} | {name: t.grad for name, t in own.items()}

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {"out": out.detach()} | {
        name: made[name].grad for name in ("x", "topk_weights", "gate_up", "down")
    }
    for name, value in expected.items():
        assert torch.equal(torch.cat([rank[name] for rank in found]), value), name
