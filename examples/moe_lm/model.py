"""A decoder of attention and mixture-of-experts layers over bytes."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F

from openmok.nn import Router

from .job import Job
from .layer_clock import LayerClock, Mark

VOCABULARY = 256


class MoE(nn.Module):
    """This rank's experts, which start from the same numbers on any number of ranks."""

    def __init__(self, config: argparse.Namespace, job: Job, clock: LayerClock, layer: int):
        super().__init__()
        self.clock = clock
        h, i = config.hidden, config.intermediate
        self.router = Router(h, config.experts, config.top_k)
        gate_up, down = [], []
        for expert in range(*job.slice_of(config.experts)):
            number = (config.seed * 1000 + layer) * config.experts + expert
            at = {
                "device": job.device,
                "generator": torch.Generator(job.device).manual_seed(number),
            }
            gate_up.append((torch.randn(2 * i, h, **at) * h**-0.5).bfloat16())
            down.append((torch.randn(h, i, **at) * i**-0.5).bfloat16())
        self.gate_up, self.down = nn.Parameter(torch.stack(gate_up)), nn.Parameter(torch.stack(down))
        self.experts = None  # set by the model: shared by all layers

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        ids, weights = self.router(rows)
        rows = Mark.apply(rows, self.clock)
        out = self.experts(rows, ids, weights, self.gate_up, self.down)
        return Mark.apply(out, self.clock).view_as(x)


class Block(nn.Module):
    def __init__(self, config: argparse.Namespace, moe: MoE):
        super().__init__()
        h = config.hidden
        self.heads = config.heads
        self.norms = nn.ModuleList([nn.RMSNorm(h), nn.RMSNorm(h)])
        self.qkv, self.proj = nn.Linear(h, 3 * h, bias=False), nn.Linear(h, h, bias=False)
        self.moe = moe

    def forward(self, x):
        n, length, h = x.shape
        qkv = self.qkv(self.norms[0](x)).view(n, length, 3, self.heads, h // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(n, length, h))
        return x + self.moe(self.norms[1](x))


class Model(nn.Module):
    def __init__(self, config: argparse.Namespace, job: Job, clock: LayerClock):
        super().__init__()
        torch.manual_seed(config.seed)
        self.tokens = nn.Embedding(VOCABULARY, config.hidden)
        self.places = nn.Parameter(0.02 * torch.randn(config.length, config.hidden))
        self.blocks = nn.ModuleList(
            [Block(config, MoE(config, job, clock, layer)) for layer in range(config.layers)]
        )
        self.norm = nn.RMSNorm(config.hidden)
        self.head = nn.Linear(config.hidden, VOCABULARY, bias=False)

    def expert_names(self) -> list[str]:
        """Of the parameters that each rank has a part of; of the others every rank has all."""
        return [n for n, _ in self.named_parameters() if n.endswith((".gate_up", ".down"))]

    def use(self, experts) -> None:
        for block in self.blocks:
            block.moe.experts = experts

    def forward(self, text):
        """text [n, length + 1] -> the mean loss in nats a byte."""
        x = self.tokens(text[:, :-1]) + self.places
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
