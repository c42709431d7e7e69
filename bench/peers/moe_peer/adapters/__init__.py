"""Layers of other libraries. Each maker imports its library, so that a missing one is a sentence:
maker(shape, rank, tensors) -> a layer with `name`, called without arguments."""

from .deep_ep import make_deep_ep
from .sonicmoe import make_sonicmoe
from .transformer_engine import make_transformer_engine

ADAPTERS = {
    "deep_ep": make_deep_ep,
    "sonicmoe": make_sonicmoe,
    "transformer_engine": make_transformer_engine,
}
