"""Differentiable steps: what the layers of layers.py are put together from."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from . import triton_kernels as kernels

grouped_mm = getattr(F, "grouped_mm", None) or torch._grouped_mm


class Permute(torch.autograd.Function):
    """x [T, H], slots [T, K] -> rows [num_rows, H]; a slot of -1 is no row."""

    @staticmethod
    def forward(ctx, x, slots, num_rows):
        ctx.save_for_backward(slots)
        return kernels.permute(x, slots, num_rows)

    @staticmethod
    def backward(ctx, d_rows):
        (slots,) = ctx.saved_tensors
        return kernels.unpermute(d_rows.contiguous(), slots), None, None


class Unpermute(torch.autograd.Function):
    """rows [n, H], slots [T, K] -> the sum of each token's rows [T, H]."""

    @staticmethod
    def forward(ctx, rows, slots):
        ctx.save_for_backward(slots)
        ctx.num_rows = rows.shape[0]
        return kernels.unpermute(rows, slots)

    @staticmethod
    def backward(ctx, d_out):
        (slots,) = ctx.saved_tensors
        return kernels.permute(d_out.contiguous(), slots, ctx.num_rows), None


class WeightedSwiglu(torch.autograd.Function):
    """gate_up [n, 2I] -> weights[routes] * silu(gate) * up [n, I]. With the router's weight applied
    here, the sum over choices needs no product and its backward no y."""

    @staticmethod
    def forward(ctx, gate_up, weights, routes):
        ctx.save_for_backward(gate_up, weights, routes)
        return kernels.swiglu(gate_up, weights, routes)

    @staticmethod
    def backward(ctx, d_hidden):
        gate_up, weights, routes = ctx.saved_tensors
        return *kernels.swiglu_backward(gate_up, weights, routes, d_hidden.contiguous()), None


class Reorder(torch.autograd.Function):
    """values[order]; `inverse` is the order's inverse."""

    @staticmethod
    def forward(ctx, values, order, inverse):
        ctx.save_for_backward(inverse)
        return values.index_select(0, order)

    @staticmethod
    def backward(ctx, d_values):
        (inverse,) = ctx.saved_tensors
        return d_values.index_select(0, inverse), None, None


class AllToAll(torch.autograd.Function):
    """Rows to their ranks: sends[r] rows go to rank r, receives[r] come from it."""

    @staticmethod
    def forward(ctx, rows, receives, sends):
        ctx.receives, ctx.sends = receives, sends
        out = rows.new_empty(sum(receives), *rows.shape[1:])
        dist.all_to_all_single(out, rows, receives, sends)
        return out

    @staticmethod
    def backward(ctx, d_out):
        d_rows = d_out.new_empty(sum(ctx.sends), *d_out.shape[1:])
        dist.all_to_all_single(d_rows, d_out.contiguous(), ctx.sends, ctx.receives)
        return d_rows, None, None


class ExpertOrder:
    """Rows sorted by expert. keys: int32 [n], the expert of each row, below num_experts.

    order [n]: the row at each place; places [n]: its inverse; ends [num_experts] int32: rows of
    the experts up to and with each one."""

    def __init__(self, keys, num_experts):
        device = keys.device
        sorted_keys, self.order = torch.sort(keys, stable=True)
        self.places = torch.empty_like(self.order)
        self.places.scatter_(0, self.order, torch.arange(keys.numel(), device=device))
        above = torch.arange(1, num_experts + 1, device=device, dtype=torch.int32)
        self.ends = torch.searchsorted(sorted_keys, above, out_int32=True)


def experts(rows, weights, routes, ends, tensors):
    """The experts themselves: rows sorted by expert -> weighted y of the same rows."""
    gate_up = grouped_mm(rows, tensors.w13.transpose(1, 2), offs=ends)
    hidden = WeightedSwiglu.apply(gate_up, weights, routes)
    return grouped_mm(hidden, tensors.w2.transpose(1, 2), offs=ends)
