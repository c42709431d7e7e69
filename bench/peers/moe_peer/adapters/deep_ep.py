"""DeepEP's intranode kernels for the exchange: one copy of a token a rank, sums on the rank before
the way back. The experts are torch's."""

import importlib

import torch
import torch.distributed as dist

from ..operators import ExpertOrder, Permute, Unpermute, experts
from ..protocol import RequestError

BUFFER_BYTES = 1 << 30
_buffer = None  # one for all cases: it exchanges its handles when it is made


class Dispatch(torch.autograd.Function):
    """x [T, H], weights [T, K] -> received rows [n, H], their weights and local ids [n, K] (-1: an
    expert elsewhere)."""

    @staticmethod
    def forward(ctx, x, weights, ids, num_experts, notes):
        per_rank, _, per_expert, in_rank, _ = _buffer.get_dispatch_layout(ids, num_experts)
        rows, local_ids, local_weights, rows_per_expert, handle, _ = _buffer.dispatch(
            x, topk_idx=ids, topk_weights=weights, num_tokens_per_rank=per_rank,
            is_token_in_rank=in_rank, num_tokens_per_expert=per_expert)
        ctx.handle = notes["handle"] = handle
        notes["num_routes"] = sum(rows_per_expert)
        ctx.mark_non_differentiable(local_ids)
        return rows, local_weights, local_ids

    @staticmethod
    def backward(ctx, d_rows, d_weights, _):
        d_x, d_topk, _ = _buffer.combine(d_rows.contiguous(), ctx.handle,
                                         topk_weights=d_weights.contiguous())
        return d_x, d_topk, None, None, None


class Combine(torch.autograd.Function):
    """Sums of the ranks' rows at home."""

    @staticmethod
    def forward(ctx, rows, handle):
        ctx.handle = handle
        return _buffer.combine(rows, handle)[0]

    @staticmethod
    def backward(ctx, d_out):
        return _buffer.dispatch(d_out.contiguous(), handle=ctx.handle)[0], None


class DeepEpLayer:
    name = "deep_ep+torch+triton"

    def __init__(self, shape, rank, tensors):
        self.shape, self.tensors = shape, tensors
        self.num_local = shape.num_local_experts(rank)
        self.ids = tensors.ids.long()

    def __call__(self):
        t, notes = self.tensors, {}
        rows, weights, local_ids = Dispatch.apply(t.x, t.weights, self.ids, self.shape.experts,
                                                  notes)
        elsewhere = torch.where(local_ids < 0, self.num_local, local_ids).reshape(-1)
        order = ExpertOrder(elsewhere.to(torch.int32), self.num_local)
        num_routes = notes["num_routes"]  # sorted first: those of experts elsewhere follow
        slots = torch.where(local_ids < 0, -1, order.places.view(local_ids.shape))
        y = experts(Permute.apply(rows, slots, num_routes), weights.reshape(-1),
                    order.order[:num_routes], order.ends, t)
        return Combine.apply(Unpermute.apply(y, slots), notes["handle"])


def make_deep_ep(shape, rank, tensors):
    global _buffer
    library = importlib.import_module("deep_ep")
    if shape.ranks == 1:
        raise RequestError("deep_ep: nothing to exchange with one rank")
    if shape.experts % shape.ranks != 0:
        raise RequestError("deep_ep: expected as many experts on every rank")
    if _buffer is None:
        _buffer = library.Buffer(dist.group.WORLD, BUFFER_BYTES, 0)
    return DeepEpLayer(shape, rank, tensors)
