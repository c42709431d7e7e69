"""The layer that is timed, and one rank's tensors of it.

Fields of a setup: name, hidden H, intermediate I, experts E, top_k K, tokens_per_rank T, ranks R,
seed, routing_file, backward, and peers: which of "torch", "deep_ep", "sonicmoe" and
"transformer_engine" are asked for. The routing file holds all ranks' ids, int32 [R * T, K], then
their weights, float32 [R * T, K], both little-endian. Rank r owns the next E / R experts, the first
E mod R ranks one more.
"""

from dataclasses import dataclass

import torch

from .protocol import RequestError

FIELDS = ("name", "hidden", "intermediate", "experts", "top_k", "tokens_per_rank", "ranks", "seed",
          "routing_file", "backward", "peers")


@dataclass(frozen=True)
class Shape:
    name: str
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    tokens_per_rank: int
    ranks: int
    seed: int
    routing_file: str
    backward: bool
    peers: tuple

    @staticmethod
    def from_request(fields):
        missing = [name for name in FIELDS if name not in fields]
        unknown = [name for name in fields if name not in FIELDS]
        if missing or unknown:
            raise RequestError(f"setup: missing fields {missing}, unknown fields {unknown}")
        return Shape(**{**fields, "peers": tuple(fields["peers"])})

    def first_expert(self, rank):
        base, more = divmod(self.experts, self.ranks)
        return rank * base + min(rank, more)

    def num_local_experts(self, rank):
        return self.first_expert(rank + 1) - self.first_expert(rank)


class Tensors:
    """x and d_out ~ N(0, 1), weights 0.02 N(0, 1), BF16. Gate and up are one tensor, as libraries
    have them: w13 [E_l, 2I, H], w2 [E_l, H, I]."""

    def __init__(self, shape, rank, device):
        torch.manual_seed(shape.seed * 1009 + rank)
        local, hidden, width = shape.num_local_experts(rank), shape.hidden, shape.intermediate

        def normal(*sizes, scale=1.0):
            return torch.randn(*sizes, device=device, dtype=torch.bfloat16).mul_(scale)

        self.x = normal(shape.tokens_per_rank, hidden).requires_grad_()
        self.w13 = normal(local, 2 * width, hidden, scale=0.02).requires_grad_()
        self.w2 = normal(local, hidden, width, scale=0.02).requires_grad_()
        self.d_out = normal(shape.tokens_per_rank, hidden)
        self.all_ids, self.all_weights = read_routing(shape)  # of all ranks, on the CPU
        own = slice(rank * shape.tokens_per_rank, (rank + 1) * shape.tokens_per_rank)
        self.ids = self.all_ids[own].to(device)  # int32 [T, K]
        self.weights = self.all_weights[own].to(device).requires_grad_()  # float32 [T, K]
        first = shape.first_expert(rank)
        counts = torch.bincount(self.all_ids.reshape(-1).long(), minlength=shape.experts)
        self.rows_per_expert = counts[first : first + local].tolist()

    def leaves(self):
        return self.x, self.weights, self.w13, self.w2

    def clear_gradients(self):
        for leaf in self.leaves():
            leaf.grad = None


def read_routing(shape):
    """Ids and weights of all ranks, [R * T, K], on the CPU."""
    num = shape.ranks * shape.tokens_per_rank * shape.top_k
    with open(shape.routing_file, "rb") as file:
        data = bytearray(file.read())
    if len(data) != 8 * num:
        raise RequestError(f"routing file: expected {8 * num} bytes, found {len(data)}")
    sizes = (shape.ranks * shape.tokens_per_rank, shape.top_k)
    ids = torch.frombuffer(data, dtype=torch.int32, count=num).view(sizes).clone()
    weights = torch.frombuffer(data, dtype=torch.float32, offset=4 * num).view(sizes).clone()
    if ids.min() < 0 or ids.max() >= shape.experts:
        raise RequestError(f"routing file: expected ids from 0 to {shape.experts - 1}, found "
                           f"{ids.min()} to {ids.max()}")
    return ids, weights
