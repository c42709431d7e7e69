"""What the operator's autograd and `EagerMoe` share, and EagerMoe: the same without a dispatcher.

EagerMoe costs the host a fraction of what the operator does; it is for calls that nobody watches (a
compiler, a dispatch mode, a tensor subclass).
"""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ._calls import Call, CallPlan, Tensors
from ._delayed import DelayedWgrad
from ._gradient_targets import GradientTargets


def keep_for_backward(
    ctx: Any, plan: CallPlan, tensors: Tensors, blocks: tuple[torch.Tensor, torch.Tensor]
) -> None:
    ctx.plan = plan
    # The leaves themselves: a saved tensor may come back as another object, without main_grad.
    ctx.leaves = [w if w.is_leaf and w.requires_grad else None for w in tensors.weights]
    ctx.save_for_backward(*blocks, *tensors[:-1], *tensors.weights)
    ctx.set_materialize_grads(False)


def backward_of(
    ctx: Any, d_out: torch.Tensor, needs: Sequence[bool], by_operator: bool
) -> list[torch.Tensor | None]:
    """The gradients of x, topk_weights, shared_weights and each weight; None: not needed."""
    tensors, schedule, context = _saved(ctx)
    targets = GradientTargets(Call(tensors, ctx.plan), needs, ctx.leaves)
    if by_operator and not targets.weights.has_main_grads:
        found = torch.ops.openmok.moe_backward(
            *tensors, *ctx.plan.scalars, d_out, schedule, context, list(needs)
        )
    else:
        found = targets.run(d_out, schedule, context)
    inputs = [gradient if need else None for gradient, need in zip(found[:3], needs)]
    return [*inputs, *targets.weights.finish(found[3:])]


def _saved(ctx: Any) -> tuple[Tensors, torch.Tensor, torch.Tensor]:
    schedule, context, *saved = ctx.saved_tensors
    num_inputs = len(Tensors._fields) - 1
    return Tensors(*saved[:num_inputs], saved[num_inputs:]), schedule, context


def _backward_of_inputs(
    ctx: Any, d_out: torch.Tensor, needs: Sequence[bool]
) -> list[torch.Tensor | None]:
    """backward_of with the weights' gradients left to a DelayedWgrad."""
    tensors, schedule, context = _saved(ctx)
    call = Call(tensors, ctx.plan)
    targets = GradientTargets(call, needs, ctx.leaves)
    held = targets.run_inputs(d_out, schedule, context)
    ctx.delayed.append(DelayedWgrad(call, held, ctx.leaves, needs[3:]))
    return [*targets.tensors()[:3], *(None for _ in ctx.leaves)]


class EagerMoe(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: CallPlan, delayed: list | None, x, topk_ids, topk_weights, shared_weights,
        *weights,
    ):  # fmt: skip
        ctx.delayed = delayed
        tensors = Tensors(x, topk_ids, topk_weights, shared_weights, weights)
        out, rows, schedule, context = Call(tensors, plan).forward(keep=True)
        keep_for_backward(ctx, plan, tensors, (schedule, context))
        ctx.mark_non_differentiable(rows)
        return out, rows

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor | None, _: Any) -> tuple[Any, ...]:
        if d_out is None:
            return (None,) * (6 + len(ctx.leaves))
        need_x, _, *others = ctx.needs_input_grad[2:]
        needs = [need_x, *others]
        if ctx.delayed is not None:
            d_x, *rest = _backward_of_inputs(ctx, d_out, needs)
        else:
            # With create_graph the operator refuses the second derivative.
            d_x, *rest = backward_of(ctx, d_out, needs, by_operator=torch.is_grad_enabled())
        return None, None, d_x, None, *rest
