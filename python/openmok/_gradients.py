"""Where the gradients of the weights go: fresh tensors, or a parameter's main_grad."""

from __future__ import annotations

from typing import Sequence

import torch

from . import _core
from ._operands import Operand
from ._raw import raw_fields_of
from ._torch_views import can_stack, stack_views


class _OperandGradient:
    """The gradient of one operand.

    `target` is what the library writes: the parameter's own main_grad where that can be, otherwise
    a fresh tensor, which finish() adds to main_grad or returns.
    """

    def __init__(
        self,
        operand: Operand,
        weights: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor | None],
        needs: Sequence[bool],
    ):
        self.operand, self.weights, self.leaves, self.needs = operand, weights, leaves, needs
        self.main_grads = [
            getattr(leaf, "main_grad", None) if need else None for leaf, need in zip(leaves, needs)
        ]
        self.in_place = self._can_accumulate_in_place()
        self.target: torch.Tensor | None = None

    def _can_accumulate_in_place(self) -> bool:
        grads = self.main_grads
        if any(g is None for g in grads):
            return False
        if any(g.dtype not in (torch.float32, torch.bfloat16) for g in grads):
            return False
        if any(g.shape != w.shape or g.stride(-1) != 1 for g, w in zip(grads, self.weights)):
            return False
        return not self.operand.per_expert or len(grads) == 1 or can_stack(grads)

    def allocate(self, accumulates: bool) -> None:
        """`accumulates`: the library adds to what the targets hold."""
        if not any(self.needs):
            return
        if self.in_place:
            self.target = (
                stack_views(self.operand.name, self.main_grads)
                if self.operand.per_expert
                else self.main_grads[0]
            )
            return
        first = self.weights[0]
        shape = (len(self.weights), *first.shape) if self.operand.per_expert else first.shape
        # What goes on into a main_grad is rounded there and nowhere before.
        wide = any(g is not None for g in self.main_grads)
        make = torch.zeros if accumulates else torch.empty
        self.target = make(
            shape, dtype=torch.float32 if wide else first.dtype, device=first.device
        )

    def finish(self, target: torch.Tensor) -> list[torch.Tensor | None]:
        """What autograd gets for each tensor of the operand."""
        if not any(self.needs):
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
        leaf.grad_added_to_main_grad = True
        make = torch.zeros if getattr(leaf, "zero_out_wgrad", False) else torch.empty
        return make(weight.shape, dtype=weight.dtype, device=weight.device)


class WeightGradients:
    """The gradients of all weights of one call."""

    def __init__(
        self,
        operands: Sequence[Operand],
        weights: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor | None],
        needs: Sequence[bool],
    ):
        self._gradients = []
        at = 0
        for operand in operands:
            own = slice(at, at + operand.count)
            at += operand.count
            self._gradients.append(
                _OperandGradient(operand, weights[own], leaves[own], needs[own])
            )

    @property
    def has_main_grads(self) -> bool:
        return any(g is not None for gradient in self._gradients for g in gradient.main_grads)

    @property
    def targets(self) -> list[torch.Tensor | None]:
        """One of each operand, None where none of its tensors needs a gradient."""
        return [gradient.target for gradient in self._gradients]

    def allocate(self) -> dict[bool, _core.GradMode]:
        """Makes the targets. The library has one way of storing for the routed experts (False) and
        one for the shared expert (True): where a main_grad is among them, all accumulate, the fresh
        ones from zero."""
        modes = {}
        for is_shared in (False, True):
            own = [g for g in self._gradients if g.operand.is_shared == is_shared]
            accumulates = any(g.in_place for g in own)
            modes[is_shared] = (
                _core.GradMode.Accumulate if accumulates else _core.GradMode.Overwrite
            )
            for gradient in own:
                gradient.allocate(accumulates)
        return modes

    def library_gradients(self) -> _core.WeightGrads:
        """The targets by the library's names; they live as long as this object."""
        modes = self.allocate()
        fields: dict[str, tuple] = {}
        for gradient in self._gradients:
            if gradient.target is not None:
                fields.update(raw_fields_of(gradient.operand, gradient.target))
        return _core.WeightGrads(mode=modes[False], shared_mode=modes[True], **fields)

    def finish(self, targets: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        return [
            part
            for gradient, target in zip(self._gradients, targets, strict=True)
            for part in gradient.finish(target)
        ]
