"""That a layer computes what it should, before any of its times counts."""

import torch
import torch.distributed as dist

from .protocol import RequestError

LARGEST_ERROR = 2e-2  # relative to the norm; BF16 keeps 8 bits and a layer rounds a few times


def relative_error(found, expected):
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


def require_equal(name, found, expected):
    error = relative_error(found, expected)
    if not error < LARGEST_ERROR:  # also where it is not a number
        raise RequestError(f"{name}: its output is off by {error:.3g} of the norm")


def check_first_layer(name, out, shape, rank, tensors):
    """The layer that others are compared with, at a few tokens of each rank."""
    tokens = [0, shape.tokens_per_rank // 2, shape.tokens_per_rank - 1]
    require_equal(name, out[tokens], expected_tokens(shape, rank, tensors, tokens))


def expected_tokens(shape, rank, tensors, tokens):
    """The layer of these tokens of this rank, textbook form in FP32: every rank adds what its
    experts make of all ranks' tokens. Collective."""
    x = tensors.x.detach()[tokens]
    every_x = [x]
    if shape.ranks > 1:
        every_x = [torch.empty_like(x) for _ in range(shape.ranks)]
        dist.all_gather(every_x, x)
    out = torch.zeros(shape.ranks, *x.shape, device=x.device)
    for home in range(shape.ranks):
        for i, token in enumerate(tokens):
            at = home * shape.tokens_per_rank + token
            out[home, i] = own_part(shape, rank, tensors, every_x[home][i].float(), at)
    if shape.ranks > 1:
        dist.all_reduce(out)
    return out[rank]


def own_part(shape, rank, tensors, x, at):
    """What this rank's experts add to the token `at` of the global batch, x [H]."""
    first, out = shape.first_expert(rank), torch.zeros_like(x)
    for expert, weight in zip(tensors.all_ids[at].tolist(), tensors.all_weights[at].tolist()):
        local = expert - first
        if 0 <= local < shape.num_local_experts(rank):
            gate, up = (tensors.w13[local].detach().float() @ x).chunk(2)
            hidden = torch.nn.functional.silu(gate) * up
            out += weight * (tensors.w2[local].detach().float() @ hidden)
    return out
