"""What the operator's autograd and `EagerMoe` share, and EagerMoe: the same without a dispatcher.

EagerMoe costs the host a fraction of what the operator does; it is for calls that nobody watches (a
compiler, a dispatch mode, a tensor subclass).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import torch

from ._calls import CallPlan, Tensors
from ._delayed import DelayedWgrad
from ._gradients import Gradients, can_accumulate, dummy_of, main_grads_of


class Kept(NamedTuple):
    """What a call keeps for its backward besides tensors."""

    plan: CallPlan
    # The leaves themselves: a saved tensor may come back as another object, without main_grad.
    leaves: Sequence[torch.Tensor | None]
    delayed: list[DelayedWgrad] | None


def leaves_of(weights: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    return [w if w.requires_grad and w.is_leaf else None for w in weights]


def _parts_of(saved: Sequence[Any]) -> tuple[Tensors, torch.Tensor]:
    kept, x, topk_ids, topk_weights, shared_weights, *weights = saved
    return Tensors(x, topk_ids, topk_weights, shared_weights, weights), kept


def backward_of(
    saved: Sequence[Any], call: Kept, d_out: torch.Tensor, needs: Sequence[bool], by_operator: bool
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of x, topk_weights, shared_weights and each weight; None: not needed. saved:
    the forward's block, x, topk_ids, topk_weights, shared_weights and each weight."""
    tensors, kept = _parts_of(saved)
    plan, d_out = call.plan, d_out.contiguous()
    gradients = Gradients(plan, tensors, needs, call.leaves)
    if by_operator and not gradients.has_main_grads:
        found = torch.ops.openmok.moe_backward(*tensors, *plan.scalars, d_out, kept, list(needs))
        inputs = [gradient if need else None for gradient, need in zip(found[:3], needs)]
        return *inputs, *gradients.finish(found[3:])
    targets = gradients.allocate()
    plan.backward(tensors, d_out, kept, gradients.inputs, targets)
    return *gradients.inputs, *gradients.finish(targets.tensors)


def _backward_of_inputs(
    saved: Sequence[Any], call: Kept, d_out: torch.Tensor, needs: Sequence[bool]
) -> list[torch.Tensor | None]:
    """backward_of with the weights' gradients left to a DelayedWgrad."""
    tensors, kept = _parts_of(saved)
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
        plan, leaves, delayed = ctx.call
        # Once: a hook may make what is saved anew.
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad
        # With create_graph the operator refuses the second derivative.
        by_operator = torch.is_grad_enabled()
        if delayed is None and not (by_operator or plan.stacks_experts):
            main_grads = main_grads_of(leaves)
            if main_grads is None:
                return plan.gradients(saved, d_out, needs, None)
            weights = saved[5:]
            if all(map(can_accumulate, main_grads, weights)) and all(needs[4:]):
                d_inputs = plan.gradients(saved, d_out, needs, main_grads)
                return *d_inputs, *map(dummy_of, leaves, weights)
        call = Kept(plan, leaves, delayed)
        if delayed is not None:
            return None, *_backward_of_inputs(saved, call, d_out, needs[1:])
        return None, *backward_of(saved, call, d_out, needs[1:], by_operator)
