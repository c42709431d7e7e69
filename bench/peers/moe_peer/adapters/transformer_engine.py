"""Transformer Engine's permutation and grouped linear layers. One GPU; its products take the rows
of each expert from the host, read once a forward."""

import importlib

import torch

from ..operators import WeightedSwiglu
from ..protocol import RequestError


class TransformerEngineLayer:
    name = "transformer_engine"

    def __init__(self, library, shape, tensors):
        self.library, self.shape, self.tensors = library, shape, tensors
        self.w13 = self.grouped_linear(shape.hidden, 2 * shape.intermediate, tensors.w13)
        self.w2 = self.grouped_linear(shape.intermediate, shape.hidden, tensors.w2)
        num_routes = tensors.ids.numel()
        self.ones = torch.ones(num_routes, device=tensors.x.device)
        self.routes = torch.arange(num_routes, device=tensors.x.device)

    def grouped_linear(self, cols_in, cols_out, weights):
        linear = self.library.GroupedLinear(self.shape.experts, cols_in, cols_out, bias=False,
                                            params_dtype=torch.bfloat16, device="cuda")
        with torch.no_grad():
            for expert in range(self.shape.experts):
                getattr(linear, f"weight{expert}").copy_(weights[expert])
        return linear

    def __call__(self):
        t = self.tensors
        rows, row_ids = self.library.moe_permute(t.x, t.ids, map_type="index")
        every = t.ids.reshape(-1).long()
        counts = torch.zeros(self.shape.experts, device=every.device, dtype=torch.int64)
        counts = counts.scatter_add_(0, every, torch.ones_like(every)).tolist()
        hidden = WeightedSwiglu.apply(self.w13(rows, counts), self.ones, self.routes)
        return self.library.moe_unpermute(self.w2(hidden, counts), row_ids, t.weights,
                                          map_type="index")

    def clear_gradients(self):
        for linear in (self.w13, self.w2):
            for weight in linear.parameters():
                weight.grad = None


def make_transformer_engine(shape, rank, tensors):
    library = importlib.import_module("transformer_engine.pytorch")
    if shape.ranks > 1:
        raise RequestError("transformer_engine: expected one rank")
    return TransformerEngineLayer(library, shape, tensors)
