"""One rank of two on the CPU: torchrun --nproc-per-node 2 fsdp_ranks.py FOLDER.

FSDP2 shards openmok.MoE over the ranks, each of which has its own tokens and, during a call, all
weights. Gradients must be the mean of those of two plain modules; a checkpoint of the sharded module
must be that of the plain one. The same on a mesh with a group for the experts, and under DDP with
main_grad. Whatever is wrong is raised.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import cases
import openmok


def module_of(seed, precision="bf16", group=None):
    torch.manual_seed(seed)
    shape = openmok.LayerShape(
        cases.H, cases.I, cases.E, cases.K, cases.S, precision=precision
    )
    return openmok.MoE(shape, score="sigmoid", shared_gate=True, group=group)


def loss_of(module, tokens_of):
    x = torch.from_numpy(cases.inputs(40, seed=tokens_of)[0])
    return module(x).square().mean()


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def trained_losses(module, loss_of_step, steps=4):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss, reported = loss_of_step(module)
        loss.backward()
        optimizer.step()
        found.append(reported.item())
    return found


def in_fp8(rank, size):
    """FSDP2 gathers parameters into memory that it frees after a call, and counts no version of them:
    the weights must be quantised again all the same, after every step."""

    def of_plain(module):
        losses = [loss_of(module, r) for r in range(size)]
        return sum(losses) / size, losses[rank]

    def of_sharded(module):
        loss = loss_of(module, rank)
        return loss, loss

    expected = trained_losses(module_of(3, "mxfp8"), of_plain)
    sharded = module_of(3, "mxfp8")
    fully_shard(sharded)
    found = trained_losses(sharded, of_sharded)
    assert expected[-1] < 0.9 * expected[0], expected
    for loss, right in zip(found, expected):
        assert abs(loss - right) < 2e-3 * right, (found, expected)


def require_gradients(module, expected, own=()):
    """Those of `expected`, by name; of names that begin as in `own`, the rank's own."""
    mean, of_rank = expected
    for name, found in module.named_parameters():
        right = (of_rank if name.startswith(own) else mean)[name]
        difference = (whole(found.grad) - right).norm() / right.norm()
        assert difference < 1e-5, (name, difference)


def with_placed_experts(mesh):
    """The module, its experts DTensors of the group for them."""
    module = module_of(0, group=mesh["ep"])
    for name, weight in list(module.experts.named_parameters()):
        placed = distribute_tensor(weight.detach(), mesh["ep"], [Shard(0)])
        setattr(module.experts, name, torch.nn.Parameter(placed))
    return module


def beside_an_expert_group(rank, size, expected):
    """A mesh of data and expert parallelism, whose groups of experts are single ranks here: FSDP2
    over all parameters, the experts plain or placed, and over all but the experts."""
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("dp", "ep"))
    for module in module_of(0, group=mesh["ep"]), with_placed_experts(mesh):
        fully_shard(module, mesh=mesh["dp"])
        loss_of(module, rank).backward()
        require_gradients(module, expected)

    rest = with_placed_experts(mesh)
    fully_shard(rest, mesh=mesh["dp"], ignored_params=set(rest.experts.parameters()))
    loss_of(rest, rank).backward()
    require_gradients(rest, expected, own=("experts.",))


def under_ddp(rank, expected):
    """Its hooks run once for each parameter, also where a gradient went on into main_grad: a second
    time is an error there, and none a backward that does not end."""
    module = module_of(0)
    experts = list(module.experts.named_parameters())
    for _, weight in experts:
        weight.main_grad, weight.zero_out_wgrad = torch.zeros(weight.shape), True
    wrapped = DistributedDataParallel(module)
    for step in range(1, 3):
        module.zero_grad()
        loss_of(wrapped, rank).backward()
        for name, weight in experts:
            assert weight.grad_added_to_main_grad and not weight.grad.any()
            right = step * expected[1][f"experts.{name}"]
            assert (weight.main_grad - right).norm() < 1e-5 * right.norm(), name
        for name, _ in experts:
            getattr(module.experts, name).grad = expected[0][f"experts.{name}"].clone()
        require_gradients(module, expected)


def gradients_of(module, loss):
    module.zero_grad()
    loss.backward(retain_graph=True)
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters()}


def main(folder):
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    plain = module_of(0)
    losses = [loss_of(plain, r) for r in range(size)]
    mean = gradients_of(plain, sum(losses) / size)
    expected = mean, gradients_of(plain, losses[rank])

    sharded = module_of(0)
    fully_shard(sharded)
    loss = loss_of(sharded, rank)
    loss.backward()
    assert torch.equal(loss.detach(), losses[rank].detach())
    require_gradients(sharded, expected)
    beside_an_expert_group(rank, size, expected)
    under_ddp(rank, expected)

    dcp.save(get_model_state_dict(sharded), checkpoint_id=folder)
    other = module_of(1)
    state = other.state_dict()
    dcp.load(state, checkpoint_id=folder)
    other.load_state_dict(state)
    for found, right in zip(other.parameters(), plain.parameters()):
        assert torch.equal(found, right)

    # Into a module that is sharded already.
    again = module_of(2)
    fully_shard(again)
    state = get_model_state_dict(again)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(again, state)
    assert torch.equal(loss_of(again, rank).detach(), losses[rank].detach())
    in_fp8(rank, size)
    if rank == 0:
        print("equal")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
