"""One rank of a job of two, a GPU each: torchrun --nproc-per-node 2 two_ranks.py.

Every rank also runs the whole batch with all experts by itself: the group's results must have the
same bits. Prints a line for each thing that rank 0 has seen right; whatever is wrong is raised.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from gpu_cases import E, H, I, K, arguments, d_out_of, without_grads
import openmok
from openmok import compat
from test_torch import grads

TUNING = openmok.Tuning(max_tokens=512)
ENDS = [0, 498, 700]  # of the ranks' tokens
EXPERTS = [0, E // 2, E]


def part_of(made, rank, ends=ENDS):
    """This rank's tokens and experts of a case, as leaves of their own."""
    tokens, experts = slice(*ends[rank : rank + 2]), slice(*EXPERTS[rank : rank + 2])
    by_expert = ("gate_up", "down", "gate_up_bias", "down_bias")
    part = {}
    for name, value in made.items():
        if isinstance(value, tuple):
            part[name] = tuple(t.detach().clone().requires_grad_() for t in value)
            continue
        own = value.detach()[experts if name in by_expert else tokens].clone()
        part[name] = own.requires_grad_() if own.is_floating_point() else own
    return part


def right_answer(made, d_out):
    """Of one rank that has everything."""
    out, _ = openmok.moe(**without_grads(made))
    out.backward(d_out)
    return {"out": out.detach(), **grads(made)}


def check_part(what, found, right, rank, ends=ENDS):
    tokens, experts = slice(*ends[rank : rank + 2]), slice(*EXPERTS[rank : rank + 2])
    for name, value in found.items():
        if name.startswith("shared ") or name == "shared":
            continue  # the sum over this rank's tokens alone
        per_token = name in ("out", "x", "topk_weights", "shared_weights")
        expected = right[name][tokens if per_token else experts]
        assert torch.equal(value, expected), f"rank {rank}, {what}: {name} has other bits"


def run(part, d_out, group):
    out, _ = openmok.moe(**without_grads(part), group=group, tuning=TUNING)
    out.backward(d_out)
    return {"out": out.detach(), **grads(part)}


def eager(rank, group, what):
    for more in ({}, {"biases": True, "shared": True}):
        made = arguments(**more)
        d_out = d_out_of(made)
        right = right_answer(made, d_out)
        part, own_d_out = part_of(made, rank), d_out[ENDS[rank] : ENDS[rank + 1]]
        for _ in range(20):
            check_part(what, run(part, own_d_out, group), right, rank)


def no_tokens(rank, group):
    made = arguments(300)
    d_out = d_out_of(made)
    right, ends = right_answer(made, d_out), [0, 300, 300]
    part = part_of(made, rank, ends)
    found = run(part, d_out[ends[rank] : ends[rank + 1]], group)
    check_part("no tokens", found, right, rank, ends)


def beside_other_kernels(rank, group):
    """torch's own all-reduces on another stream, issued before the layer on rank 0, after it on
    rank 1."""
    made = arguments()
    d_out = d_out_of(made)
    right = right_answer(made, d_out)
    part, own_d_out = part_of(made, rank), d_out[ENDS[rank] : ENDS[rank + 1]]
    stream, other = torch.cuda.Stream(), torch.ones(1 << 20, device="cuda")

    def reduce():
        with torch.cuda.stream(stream):
            dist.all_reduce(other)
            other.mul_(0.5)

    for _ in range(100):
        if rank == 0:
            reduce()
        found = run(part, own_d_out, group)
        if rank == 1:
            reduce()
    torch.cuda.synchronize()
    check_part("beside all-reduces", found, right, rank)
    assert (other == 1).all()


def captured(rank, group):
    """A graph of forward and backward, replayed with changed routing."""
    cases = [arguments(seed=seed) for seed in (1, 2, 3)]
    d_out = d_out_of(cases[0])
    rights = [right_answer(made, d_out) for made in cases]
    parts = [part_of(made, rank) for made in cases]
    static, own_d_out = part_of(cases[0], rank), d_out[ENDS[rank] : ENDS[rank + 1]]
    run(static, own_d_out, group)
    without_grads(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = openmok.moe(**static, group=group, tuning=TUNING)
        out.backward(own_d_out)
    for i in (0, 1, 2, 2, 1):
        with torch.no_grad():
            for name, value in static.items():
                value.copy_(parts[i][name])
        graph.replay()
        check_part("graph", {"out": out.detach(), **grads(static)}, rights[i], rank)


def reference_calls(rank, group):
    """openmok.compat, with a routing of its own on each rank."""
    made = arguments(seed=4)
    tokens = 350
    config = compat.MoKConfig(minibatch_size=256, macrobatch_size=1024)
    d_out = d_out_of(made)
    right = right_answer(made, d_out)
    part = part_of(made, rank, [0, tokens, 2 * tokens])
    own_d_out = d_out[rank * tokens : (rank + 1) * tokens]
    workspace = compat.get_workspace(
        config, group, device=rank, num_local_tokens=tokens, hidden_size=H, topk=K
    )
    x, router = part["x"].detach(), part["topk_weights"].detach()
    weights = [None] * 3 + [*part["gate_up"].detach().chunk(2, 1), part["down"].detach()]
    schedule = compat.build_schedule(
        workspace, config, part["topk_ids"], num_local_experts=E // 2
    )
    out, ctx = compat.forward(config, workspace, schedule, x, router, *weights)
    d_x, d_router, d_gate, d_up, d_down, *_ = compat.backward(
        config, workspace, schedule, ctx, own_d_out, x, router, *weights
    )
    found = {"out": out, "x": d_x, "topk_weights": d_router, "down": d_down}
    found["gate_up"] = torch.cat([d_gate, d_up], 1)
    check_part("compat", found, right, rank, [0, tokens, 2 * tokens])


def compiled(rank, group):
    made = arguments()
    d_out = d_out_of(made)
    right = right_answer(made, d_out)
    part, own_d_out = part_of(made, rank), d_out[ENDS[rank] : ENDS[rank + 1]]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x):
        return openmok.moe(**(part | {"x": x}), group=group, tuning=TUNING)[0]

    out = layer(part["x"])
    out.backward(own_d_out)
    check_part("compiled", {"out": out.detach(), **grads(part)}, right, rank)


def dtensors(rank, mesh):
    made = arguments()
    d_out = d_out_of(made)
    right = right_answer(made, d_out)
    part = part_of(made, rank)
    names = ("gate_up", "down")
    placed = {name: DTensor.from_local(part[name].detach(), mesh, [Shard(0)]) for name in names}
    placed = {name: torch.nn.Parameter(tensor) for name, tensor in placed.items()}
    out, _ = openmok.moe(**(part | placed), group=mesh, tuning=TUNING)
    out.backward(d_out[ENDS[rank] : ENDS[rank + 1]])
    found = {name: tensor.grad.to_local() for name, tensor in placed.items()}
    check_part("DTensors", {"out": out.detach(), "x": part["x"].grad, **found}, right, rank)


def module(rank, group):
    """Trains; the router's and the shared expert's gradients are added over the ranks."""
    torch.manual_seed(rank)
    shape = openmok.LayerShape(H, I, E, K, 256)
    layer = openmok.MoE(shape, group=group, tuning=TUNING).cuda()
    dense = [p for name, p in layer.named_parameters() if not name.startswith("experts.")]
    for parameter in dense:
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    x = torch.randn(200 + 100 * rank, H, device="cuda")
    first = None
    for _ in range(30):
        optimizer.zero_grad()
        loss = (layer(x) - x).square().mean()
        loss.backward()
        for parameter in dense:
            dist.all_reduce(parameter.grad)
        optimizer.step()
        first = first or loss.item()
    assert loss.item() < 0.9 * first, (first, loss.item())


def main():
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=torch.device("cuda", device))
    rank = dist.get_rank()
    mesh = init_device_mesh("cuda", (1, 2), mesh_dim_names=("dp", "ep"))["ep"]
    world = dist.group.WORLD

    def say(what):
        torch.cuda.synchronize()
        openmok.synchronize()
        dist.barrier()
        if rank == 0:
            print("right:", what, flush=True)

    eager(rank, world, "process group")
    say("process group")
    eager(rank, mesh, "mesh")
    say("mesh")
    no_tokens(rank, world)
    say("no tokens")
    beside_other_kernels(rank, world)
    say("beside all-reduces")
    captured(rank, world)
    say("graph")
    reference_calls(rank, world)
    say("compat")
    compiled(rank, world)
    say("compiled")
    dtensors(rank, mesh)
    say("DTensors")
    module(rank, world)
    say("module")
    openmok.clear_workspaces()
    dist.destroy_process_group()


main()
