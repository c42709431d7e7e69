"""What the operator's autograd and `EagerMoe` share, and EagerMoe: the same without a dispatcher.

EagerMoe costs the host a fraction of what the operator does; it is for calls that nobody watches (a
compiler, a dispatch mode, a tensor subclass).
"""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ._calls import CallPlan, Tensors
from ._delayed import DelayedWgrad
from ._gradients import Gradients


def keep_for_backward(ctx: Any, plan: CallPlan, tensors: Tensors, kept: torch.Tensor) -> None:
    ctx.plan = plan
    # The leaves themselves: a saved tensor may come back as another object, without main_grad.
    ctx.leaves = [w if w.requires_grad and w.is_leaf else None for w in tensors.weights]
    ctx.save_for_backward(kept, *tensors[:-1], *tensors.weights)


def _saved(ctx: Any) -> tuple[Tensors, torch.Tensor]:
    kept, x, topk_ids, topk_weights, shared_weights, *weights = ctx.saved_tensors
    return Tensors(x, topk_ids, topk_weights, shared_weights, weights), kept


def backward_of(
    ctx: Any, d_out: torch.Tensor, needs: Sequence[bool], by_operator: bool
) -> list[torch.Tensor | None]:
    """The gradients of x, topk_weights, shared_weights and each weight; None: not needed."""
    tensors, kept = _saved(ctx)
    plan: CallPlan = ctx.plan
    gradients = Gradients(plan, tensors, needs, ctx.leaves)
    d_out = d_out.contiguous()
    if by_operator and not gradients.has_main_grads:
        found = torch.ops.openmok.moe_backward(
            *tensors, *plan.scalars, d_out, kept, list(needs)
        )
        inputs = [gradient if need else None for gradient, need in zip(found[:3], needs)]
        return [*inputs, *gradients.finish(found[3:])]
    targets = gradients.allocate()
    plan.backward(tensors, d_out, kept, gradients.inputs, targets)
    return [*gradients.inputs, *gradients.finish(targets.tensors)]


def _backward_of_inputs(
    ctx: Any, d_out: torch.Tensor, needs: Sequence[bool]
) -> list[torch.Tensor | None]:
    """backward_of with the weights' gradients left to a DelayedWgrad."""
    tensors, kept = _saved(ctx)
    gradients = Gradients(ctx.plan, tensors, needs, ctx.leaves)
    held = ctx.plan.backward_input(tensors, d_out.contiguous(), kept, gradients.inputs)
    ctx.delayed.append(DelayedWgrad(held, ctx.leaves, needs[3:]))
    return [*gradients.inputs, *(None for _ in ctx.leaves)]


class EagerMoe(torch.autograd.Function):
    """Returns out. rows: an empty list, to which it adds tokens_per_expert: as a second output that
    would be autograd's business."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: CallPlan,
        delayed: list[DelayedWgrad] | None,
        rows: list[torch.Tensor],
        x: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
        shared_weights: torch.Tensor | None,
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        tensors = Tensors(x, topk_ids, topk_weights, shared_weights, weights)
        out, tokens_per_expert, kept = plan.forward(tensors, keeps_context=True)
        rows.append(tokens_per_expert)
        ctx.delayed = delayed
        keep_for_backward(ctx, plan, tensors, kept)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor) -> tuple[Any, ...]:
        need_x, _, *others = ctx.needs_input_grad[3:]
        needs = [need_x, *others]
        if ctx.delayed is not None:
            d_x, *rest = _backward_of_inputs(ctx, d_out, needs)
        else:
            # With create_graph the operator refuses the second derivative.
            d_x, *rest = backward_of(ctx, d_out, needs, by_operator=torch.is_grad_enabled())
        return None, None, None, d_x, None, *rest
