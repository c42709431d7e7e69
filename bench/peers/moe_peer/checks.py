"""That a layer computes what it should, before any of its times counts."""

import torch

from .protocol import RequestError

LARGEST_ERROR = 2e-2  # relative to the norm; BF16 keeps 8 bits and a layer rounds a few times


def relative_error(found, expected):
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


def require_equal(name, found, expected):
    error = relative_error(found, expected)
    if not error < LARGEST_ERROR:  # also where it is not a number
        raise RequestError(f"{name}: its output is off by {error:.3g} of the norm")


def expected_tokens(tensors, tokens):
    """The layer of a few tokens, textbook form in FP32, where all experts are on this GPU."""
    rows = []
    for token in tokens:
        x, out = tensors.x[token].detach().float(), 0.0
        for expert, weight in zip(tensors.ids[token].tolist(), tensors.weights[token].tolist()):
            gate, up = (tensors.w13[expert].detach().float() @ x).chunk(2)
            hidden = torch.nn.functional.silu(gate) * up
            out = out + weight * (tensors.w2[expert].detach().float() @ hidden)
        rows.append(out)
    return torch.stack(rows)


def check_first_layer(name, out, shape, tensors):
    """The layer that others are compared with. Its experts must be here."""
    if shape.ranks > 1:
        if not torch.isfinite(out).all():
            raise RequestError(f"{name}: its output is not finite")
        return
    tokens = [0, shape.tokens_per_rank // 2, shape.tokens_per_rank - 1]
    require_equal(name, out[tokens], expected_tokens(tensors, tokens))
