"""What the operator's autograd and `EagerMoe` share, and EagerMoe: the same without a dispatcher.

EagerMoe costs the host a fraction of what the operator does; it is for calls that nobody watches (a
compiler, a dispatch mode, a tensor subclass).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import torch

from ._calls import CallPlan, Tensors, WeightTargets
from ._delayed import DelayedWgrad
from ._gradients import OVERWRITE_BOTH, Gradients, fresh_gradients


class Kept(NamedTuple):
    """What a call keeps for its backward besides tensors."""

    plan: CallPlan
    # The leaves themselves: a saved tensor may come back as another object, without main_grad.
    leaves: Sequence[torch.Tensor | None]
    delayed: list[DelayedWgrad] | None


def leaves_of(weights: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    return [w if w.requires_grad and w.is_leaf else None for w in weights]


def _saved(ctx: Any) -> tuple[Tensors, torch.Tensor]:
    kept, x, topk_ids, topk_weights, shared_weights, *weights = ctx.saved_tensors
    return Tensors(x, topk_ids, topk_weights, shared_weights, weights), kept


def backward_of(
    ctx: Any, call: Kept, d_out: torch.Tensor, needs: Sequence[bool], by_operator: bool
) -> list[torch.Tensor | None]:
    """The gradients of x, topk_weights, shared_weights and each weight; None: not needed."""
    tensors, kept = _saved(ctx)
    plan, d_out = call.plan, d_out.contiguous()
    main_grads = [getattr(leaf, "main_grad", None) for leaf in call.leaves]
    has_main_grads = any([g is not None for g in main_grads])
    if by_operator and not has_main_grads:
        found = torch.ops.openmok.moe_backward(*tensors, *plan.scalars, d_out, kept, list(needs))
        gradients = Gradients(plan, tensors, needs, call.leaves)
        inputs = [gradient if need else None for gradient, need in zip(found[:3], needs)]
        return [*inputs, *gradients.finish(found[3:])]
    if has_main_grads or plan.stacks_experts:
        gradients = Gradients(plan, tensors, needs, call.leaves)
        targets = gradients.allocate()
        plan.backward(tensors, d_out, kept, gradients.inputs, targets)
        return [*gradients.inputs, *gradients.finish(targets.tensors)]
    fresh = fresh_gradients(tensors, needs)
    d_inputs = fresh[0], fresh[1], fresh[2]
    plan.backward(tensors, d_out, kept, d_inputs, WeightTargets(fresh[3:], OVERWRITE_BOTH))
    return fresh


def _backward_of_inputs(
    ctx: Any, call: Kept, d_out: torch.Tensor, needs: Sequence[bool]
) -> list[torch.Tensor | None]:
    """backward_of with the weights' gradients left to a DelayedWgrad."""
    tensors, kept = _saved(ctx)
    gradients = Gradients(call.plan, tensors, needs, call.leaves)
    held = call.plan.backward_input(tensors, d_out.contiguous(), kept, gradients.inputs)
    assert call.delayed is not None
    call.delayed.append(DelayedWgrad(held, call.leaves, needs[3:]))
    return [*gradients.inputs, *(None for _ in call.leaves)]


class EagerMoe(torch.autograd.Function):
    """Returns out. call: what takes no part in derivatives: the plan, the weights that are leaves
    (`leaves_of`), where delayed weight gradients go, an empty list to which tokens_per_expert is
    added (a second output would be autograd's business), topk_ids."""

    @staticmethod
    def forward(
        ctx: Any,
        call: tuple[
            CallPlan,
            Sequence[torch.Tensor | None],
            list[DelayedWgrad] | None,
            list[torch.Tensor],
            torch.Tensor,
        ],
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        shared_weights: torch.Tensor | None,
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        plan, leaves, delayed, rows, topk_ids = call
        out, tokens_per_expert, kept = plan.forward(
            x, topk_ids, topk_weights, shared_weights, weights, True
        )
        rows.append(tokens_per_expert)
        ctx.call = plan, leaves, delayed
        ctx.save_for_backward(kept, x, topk_ids, topk_weights, shared_weights, *weights)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: torch.Tensor) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad[1:]
        call = Kept(*ctx.call)
        if call.delayed is not None:
            return None, *_backward_of_inputs(ctx, call, d_out, needs)
        # With create_graph the operator refuses the second derivative.
        return None, *backward_of(ctx, call, d_out, needs, torch.is_grad_enabled())
