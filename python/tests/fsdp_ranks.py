"""One rank of two on the CPU: torchrun --nproc-per-node 2 fsdp_ranks.py FOLDER.

FSDP2 shards openmok.MoE over the ranks, each of which has its own tokens and, during a call, all
weights. Gradients must be the mean of those of two plain modules; a checkpoint of the sharded module
must be that of the plain one. Whatever is wrong is raised.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard

import cases
import openmok


def module_of(seed, precision="bf16"):
    torch.manual_seed(seed)
    shape = openmok.LayerShape(
        cases.H, cases.I, cases.E, cases.K, cases.S, precision=precision
    )
    return openmok.MoE(shape, score="sigmoid", shared_gate=True)


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


def main(folder):
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    plain = module_of(0)
    losses = [loss_of(plain, r) for r in range(size)]
    (sum(losses) / size).backward()

    sharded = module_of(0)
    fully_shard(sharded)
    loss = loss_of(sharded, rank)
    loss.backward()
    assert torch.equal(loss.detach(), losses[rank].detach())
    for (name, found), expected in zip(sharded.named_parameters(), plain.parameters()):
        gradient = whole(found.grad)
        difference = (gradient - expected.grad).norm() / expected.grad.norm()
        assert difference < 1e-5, (name, difference)

    dcp.save(get_model_state_dict(sharded), checkpoint_id=folder)
    other = module_of(1)
    state = other.state_dict()
    dcp.load(state, checkpoint_id=folder)
    other.load_state_dict(state)
    for found, expected in zip(other.parameters(), plain.parameters()):
        assert torch.equal(found, expected)

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
