"""The experts' layer: openmok's, or torch's own operations."""

from __future__ import annotations

import argparse
from pathlib import Path
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.nn import functional as F

import openmok

from .job import Job


class MokExperts:
    def __init__(self, config: argparse.Namespace, job: Job, max_tokens: int):
        self.options = {
            "group": dist.group.WORLD if job.size > 1 else None,
            "num_experts": config.experts,
            "precision": config.precision,
            "tuning": openmok.Tuning(max_tokens=max_tokens if job.size > 1 else 0),
        }

    def __call__(self, x, ids, weights, gate_up, down):
        return openmok.moe(x, ids, weights, gate_up, down, **self.options)[0]


class TorchExperts:
    """The layer of bench/peers, which needs a GPU with Triton."""

    def __init__(self, config: argparse.Namespace, job: Job, max_tokens: int):
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/peers"))
        from moe_peer.case import Shape
        from moe_peer.layers import NcclLayer, TorchLayer

        shape = Shape(
            name="train", hidden=config.hidden, intermediate=config.intermediate,
            experts=config.experts, top_k=config.top_k, tokens_per_rank=max_tokens,
            ranks=job.size, seed=config.seed, routing_file="", backward=True, peers=(),
        )  # fmt: skip
        place = SimpleNamespace(x=torch.empty(0, device=job.device))
        self.layer = (NcclLayer if job.size > 1 else TorchLayer)(shape, job.rank, place)

    def __call__(self, x, ids, weights, gate_up, down):
        self.layer.tensors = SimpleNamespace(
            x=x, ids=ids.int(), weights=weights, w13=gate_up, w2=down
        )
        return self.layer()


class GatherRows(torch.autograd.Function):
    """The rows of all ranks, which have equally many."""

    @staticmethod
    def forward(ctx, rows, job):
        ctx.job, ctx.num_rows = job, len(rows)
        parts = [torch.empty_like(rows) for _ in range(job.size)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, d_rows):
        return sum_of_ranks(d_rows).split(ctx.num_rows)[ctx.job.rank], None


class SumRows(torch.autograd.Function):
    """The sum of all ranks' rows, of which this rank gets its own."""

    @staticmethod
    def forward(ctx, rows, job):
        ctx.job = job
        return sum_of_ranks(rows).chunk(job.size)[job.rank].clone()

    @staticmethod
    def backward(ctx, d_rows):
        return GatherRows.apply(d_rows, ctx.job), None


def sum_of_ranks(rows):
    total = rows.float()
    dist.all_reduce(total)
    return total.to(rows.dtype)


class LoopExperts:
    """One expert after the other. Several ranks: every rank computes its own experts for the tokens
    of all. For the CPU, where it stands in for a layer that nobody has there."""

    def __init__(self, config: argparse.Namespace, job: Job, max_tokens: int):
        self.job = job
        self.first, _ = job.slice_of(config.experts)

    def __call__(self, x, ids, weights, gate_up, down):
        if self.job.size == 1:
            return self.of_own_experts(x, ids, weights, gate_up, down)
        everybodys = [GatherRows.apply(rows, self.job) for rows in (x, ids, weights)]
        return SumRows.apply(self.of_own_experts(*everybodys, gate_up, down), self.job)

    def of_own_experts(self, x, ids, weights, gate_up, down):
        out = torch.zeros_like(x)
        for expert in range(len(down)):
            tokens, choices = torch.nonzero(ids == self.first + expert, as_tuple=True)
            gate, up = (x[tokens] @ gate_up[expert].T).chunk(2, -1)
            y = (F.silu(gate) * up) @ down[expert].T
            out = out.index_add(0, tokens, (weights[tokens, choices, None] * y).to(x.dtype))
        return out


def make_experts(config: argparse.Namespace, job: Job, max_tokens: int):
    if config.backend == "mok":
        return MokExperts(config, job, max_tokens)
    kind = TorchExperts if job.device.type == "cuda" else LoopExperts
    return kind(config, job, max_tokens)
