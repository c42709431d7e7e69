"""Weight gradients that are computed apart from the backward, for pipeline schedules."""

from __future__ import annotations

from typing import Sequence

import torch

from ._calls import HeldCall
from ._gradients import WeightGradients
from .errors import MokError, MokShapeError


class DelayedWgrad:
    """The weight gradients of one call, after its backward, which are added to main_grad where a
    leaf has it, else to .grad, to the same bits as those of a whole backward.

    To be called once, by every rank in the order of the backwards. `shared_expert` computes those
    of the shared expert's weights alone before that, for instance while another rank is awaited.
    """

    def __init__(
        self, held: HeldCall, leaves: Sequence[torch.Tensor | None], needs: Sequence[bool]
    ):
        self._held: HeldCall | None = held
        self._leaves, self._needs = leaves, list(needs)

    def __call__(self) -> None:
        """All that are not there yet. Collective.

        Raises:
            MokError: a second call.
            MokTimeout: a rank that did not come.
        """
        self._compute(self._needs, is_shared_alone=False)
        self._held = None

    def shared_expert(self) -> None:
        """Those of the shared expert. Not collective; waits for nobody.

        Raises:
            MokError: a second call, or one after the whole call.
            MokShapeError: a layer without a shared expert.
        """
        held = self._holding()
        is_shared = [o.is_shared for o in held.plan.layer.operands for _ in range(o.count)]
        if not any(is_shared):
            raise MokShapeError("shared_expert: expected a layer with a shared expert, found none")
        needs = [need and shared for need, shared in zip(self._needs, is_shared)]
        if not any(needs):
            raise MokError("delayed wgrad: expected one call of shared_expert, found a second one")
        self._compute(needs, is_shared_alone=True)
        self._needs = [n and not shared for n, shared in zip(self._needs, is_shared)]

    def _holding(self) -> HeldCall:
        if self._held is None:
            raise MokError("delayed wgrad: expected one call, found a second one")
        return self._held

    def _compute(self, needs: Sequence[bool], is_shared_alone: bool) -> None:
        held = self._holding()
        weights = held.tensors.weights
        gradients = WeightGradients(held.plan.layer.operands, weights, self._leaves, needs)
        with torch.no_grad():
            targets = gradients.allocate()
            held.wgrad(targets, is_shared_alone)
            found = gradients.finish(targets.tensors)
            for leaf, gradient in zip(self._leaves, found):
                has_main_grad = getattr(leaf, "main_grad", None) is not None
                if leaf is None or gradient is None or has_main_grad:
                    continue
                leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient


def require_leaves(weights: Sequence[torch.Tensor]) -> None:
    for weight in weights:
        if weight.requires_grad and not weight.is_leaf:
            raise MokShapeError(
                "delayed_wgrads: expected weights that are parameters, found one that was computed"
            )
