"""SonicMoE's layer with given routing. One GPU."""

import importlib

import torch

from ..protocol import RequestError


class SonicMoeLayer:
    """Its weights: w1 [2I, H, E] with gate and up rows alternating, w2 [H, I, E], the expert
    outermost in memory."""

    name = "sonicmoe"

    def __init__(self, library, activation, shape, tensors):
        self.library, self.activation, self.shape = library, activation, shape
        t = self.tensors = tensors
        gate, up = t.w13.detach().chunk(2, dim=1)
        self.w1 = torch.stack([gate, up], dim=2).flatten(1, 2).permute(1, 2, 0).requires_grad_()
        self.w2 = t.w2.detach().clone().permute(1, 2, 0).requires_grad_()
        tokens = torch.arange(shape.tokens_per_rank, device=t.x.device, dtype=torch.int32)
        self.tokens = tokens.repeat_interleave(shape.top_k)  # ascending, as it asks for
        self.experts = t.ids.reshape(-1)

    def __call__(self):
        stream = torch.cuda.current_stream().cuda_stream
        return self.library.moe_general_routing_inputs(
            self.tensors.x, self.tensors.weights.reshape(-1), self.tokens, self.experts, self.w1,
            None, self.w2, None, self.shape.experts, stream, self.activation,
            not torch.is_grad_enabled())[0]

    def clear_gradients(self):
        self.w1.grad = self.w2.grad = None


def make_sonicmoe(shape, rank, tensors):
    library = importlib.import_module("sonicmoe.functional")
    activation = importlib.import_module("sonicmoe.enums").ActivationType.SWIGLU
    if shape.ranks > 1:
        raise RequestError("sonicmoe: expected one rank")
    return SonicMoeLayer(library, activation, shape, tensors)
