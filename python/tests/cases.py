"""Inputs of a layer, all of them BF16 numbers."""

import numpy as np

from textbook import bf16

H, I, E, K, S = 64, 40, 6, 3, 24


def inputs(num_tokens, seed=0, mask=True):
    """x, ids with some choices masked, router weights."""
    rng = np.random.default_rng(seed)
    x = bf16(rng.standard_normal((num_tokens, H)))
    ids = np.argsort(rng.random((num_tokens, E)), axis=1)[:, :K].astype(np.int64)
    if mask:
        ids[rng.random((num_tokens, K)) < 0.1] = -1
    return x, ids, rng.random((num_tokens, K), np.float32)


def weights(seed=1, biases=False, shared=False):
    """gate_up [E, 2I, H], down [E, H, I] and, where asked for, what `moe` calls them."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape, scale: bf16(rng.standard_normal(shape) * scale)
    made = {
        "gate_up": normal(E, 2 * I, H, scale=H**-0.5),
        "down": normal(E, H, I, scale=I**-0.5),
    }
    if biases:
        made["gate_up_bias"] = normal(E, 2 * I, scale=0.3)
        made["down_bias"] = normal(E, H, scale=0.3)
    if shared:
        made["shared"] = (normal(2 * S, H, scale=H**-0.5), normal(H, S, scale=S**-0.5))
    return made


def library_names(made):
    """The same by `openmok.Weights`' names, as views."""
    named = {"gate": made["gate_up"][:, :I], "up": made["gate_up"][:, I:], "down": made["down"]}
    if "down_bias" in made:
        named["gate_bias"] = made["gate_up_bias"][:, :I]
        named["up_bias"] = made["gate_up_bias"][:, I:]
        named["down_bias"] = made["down_bias"]
    if "shared" in made:
        gate_up, down = made["shared"]
        named.update(shared_gate=gate_up[:S], shared_up=gate_up[S:], shared_down=down)
    return named
