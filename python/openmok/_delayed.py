"""Weight gradients that are computed apart from the backward, for pipeline schedules."""

from __future__ import annotations

from typing import Sequence

import torch

from ._calls import Call, HeldCall
from ._gradients import WeightGradients
from .errors import MokError, MokShapeError


class DelayedWgrad:
    """The weight gradients of one call, after its backward. To be called once: they are added to
    main_grad where a leaf has it, else to .grad, to the same bits as those of a whole backward."""

    def __init__(
        self,
        call: Call,
        held: HeldCall,
        leaves: Sequence[torch.Tensor | None],
        needs: Sequence[bool],
    ):
        self._call, self._held = call, held
        self._leaves, self._needs = leaves, needs

    def __call__(self) -> None:
        """Collective: every rank makes the call, in the order of the backwards."""
        if self._held is None:
            raise MokError("delayed wgrad: expected one call, found a second one")
        weights = self._call.tensors.weights
        gradients = WeightGradients(
            self._call.layer.operands, weights, self._leaves, self._needs
        )
        with torch.no_grad():
            self._call.wgrad(self._held, gradients.library_gradients())
            found = gradients.finish(gradients.targets)
            for leaf, gradient in zip(self._leaves, found):
                has_main_grad = getattr(leaf, "main_grad", None) is not None
                if gradient is None or has_main_grad:
                    continue
                leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient
        self._held = None


def require_leaves(weights: Sequence[torch.Tensor]) -> None:
    for weight in weights:
        if weight.requires_grad and not weight.is_leaf:
            raise MokShapeError(
                "delayed_wgrads: expected weights that are parameters, found one that was computed"
            )
