"""Where the gradients of a call go: fresh tensors, or a parameter's main_grad."""

from __future__ import annotations

from typing import Sequence

import torch

from . import _core
from ._calls import OVERWRITE_BOTH, CallPlan, Tensors, WeightTargets
from ._operands import Operand
from ._torch_views import can_stack, stack_views

_OVERWRITE, _ACCUMULATE = _core.GradMode.Overwrite, _core.GradMode.Accumulate


def _fresh(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def main_grads_of(leaves: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None] | None:
    """Of each leaf; None where none has one."""
    found = [getattr(leaf, "main_grad", None) for leaf in leaves]
    for main_grad in found:
        if main_grad is not None:
            return found
    return None


def can_accumulate(main_grad: torch.Tensor | None, weight: torch.Tensor) -> bool:
    """Whether the library can add the weight's gradient to main_grad itself."""
    return (
        main_grad is not None
        and main_grad.dtype in (torch.float32, torch.bfloat16)
        and main_grad.shape == weight.shape
        and main_grad.stride(-1) == 1
    )


def dummy_of(leaf: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """What autograd gets where main_grad has had the gradient, which the leaf then says."""
    leaf.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    dummy = torch.empty_like(weight, memory_format=torch.contiguous_format)
    return dummy.zero_() if getattr(leaf, "zero_out_wgrad", False) else dummy


class _FreshGradient:
    """The gradient of an operand of one tensor that has no main_grad."""

    in_place = False

    def __init__(self, operand: Operand, weight: torch.Tensor, need: bool):
        self.operand, self._weight, self._need = operand, weight, need

    def allocate(self, accumulates: bool) -> torch.Tensor | None:
        if not self._need:
            return None
        target = _fresh(self._weight)
        return target.zero_() if accumulates else target

    def finish(self, target: torch.Tensor | None) -> list[torch.Tensor | None]:
        return [target if self._need else None]


class _MainGradient:
    """The gradient of any operand.

    What the library writes, its target, is the parameter's own main_grad where that can be,
    otherwise a fresh tensor, which finish() adds to main_grad or returns.
    """

    def __init__(
        self,
        operand: Operand,
        weights: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor | None],
        needs: Sequence[bool],
        main_grads: Sequence[torch.Tensor | None],
    ):
        self.operand, self.weights, self.leaves, self.needs = operand, weights, leaves, needs
        self.main_grads = main_grads
        self.in_place = self._can_accumulate_in_place()

    def _can_accumulate_in_place(self) -> bool:
        for main_grad, weight in zip(self.main_grads, self.weights):
            if not can_accumulate(main_grad, weight):
                return False
        return not self.operand.per_expert or can_stack(list(self.main_grads))

    def allocate(self, accumulates: bool) -> torch.Tensor | None:
        """`accumulates`: the library adds to what the targets hold."""
        if not any(self.needs):
            return None
        if self.in_place:
            if not self.operand.per_expert:
                return self.main_grads[0]
            return stack_views(self.operand.name, list(self.main_grads))
        first = self.weights[0]
        shape = (len(self.weights), *first.shape) if self.operand.per_expert else first.shape
        # What goes on into a main_grad is rounded there and nowhere before.
        wide = any(g is not None for g in self.main_grads)
        make = torch.zeros if accumulates else torch.empty
        return make(shape, dtype=torch.float32 if wide else first.dtype, device=first.device)

    def finish(self, target: torch.Tensor | None) -> list[torch.Tensor | None]:
        """What autograd gets for each tensor of the operand."""
        if target is None or not any(self.needs):
            return [None] * len(self.weights)
        parts = list(target.unbind(0)) if self.operand.per_expert else [target]
        return [
            self._finish_one(weight, part, leaf, main_grad) if need else None
            for weight, part, leaf, main_grad, need in zip(
                self.weights, parts, self.leaves, self.main_grads, self.needs
            )
        ]

    def _finish_one(
        self,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        leaf: torch.Tensor | None,
        main_grad: torch.Tensor | None,
    ) -> torch.Tensor:
        if main_grad is None:
            return gradient.to(weight.dtype)
        if not self.in_place:
            main_grad.add_(gradient.view_as(main_grad))
        assert leaf is not None
        return dummy_of(leaf, weight)


class WeightGradients:
    """The gradients of all weights of one call.

    leaves: each weight's own leaf, whose main_grad counts, or None. needs: of each weight.
    """

    def __init__(
        self,
        operands: Sequence[Operand],
        weights: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor | None],
        needs: Sequence[bool],
    ):
        main_grads = [
            getattr(leaf, "main_grad", None) if need and leaf is not None else None
            for leaf, need in zip(leaves, needs)
        ]
        self.has_main_grads = any([g is not None for g in main_grads])
        self._gradients: list[_FreshGradient | _MainGradient] = []
        at = 0
        for operand in operands:
            if operand.per_expert or main_grads[at] is not None:
                own = slice(at, at + operand.count)
                gradient = _MainGradient(
                    operand, weights[own], leaves[own], needs[own], main_grads[own]
                )
                self._gradients.append(gradient)
            else:
                self._gradients.append(_FreshGradient(operand, weights[at], needs[at]))
            at += operand.count

    def allocate(self) -> WeightTargets:
        """Makes the targets. The library has one way of storing for the routed experts and one for
        the shared expert: where a main_grad is among them, all accumulate, the fresh ones from
        zero."""
        if not self.has_main_grads:
            return WeightTargets(
                [g.allocate(False) for g in self._gradients], OVERWRITE_BOTH
            )
        routed, shared = (
            any(g.in_place for g in self._gradients if g.operand.is_shared == is_shared)
            for is_shared in (False, True)
        )
        targets = [g.allocate(shared if g.operand.is_shared else routed) for g in self._gradients]
        return WeightTargets(
            targets,
            (_ACCUMULATE if routed else _OVERWRITE, _ACCUMULATE if shared else _OVERWRITE),
        )

    def finish(self, targets: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """What autograd gets for each weight."""
        found: list[torch.Tensor | None] = []
        for gradient, target in zip(self._gradients, targets, strict=True):
            found += gradient.finish(target)
        return found


class Gradients(WeightGradients):
    """The gradients of all inputs and weights of one call.

    needs: of x, topk_weights, shared_weights, then of each weight. Those of the inputs are
    `inputs`, made at once.
    """

    def __init__(
        self,
        plan: CallPlan,
        tensors: Tensors,
        needs: Sequence[bool],
        leaves: Sequence[torch.Tensor | None],
    ):
        super().__init__(plan.layer.operands, tensors.weights, leaves, needs[3:])
        x, _, topk_weights, shared_weights, _ = tensors
        self.inputs = (
            _fresh(x) if needs[0] else None,
            _fresh(topk_weights) if needs[1] else None,
            _fresh(shared_weights) if needs[2] and shared_weights is not None else None,
        )
