"""Fresh tensors for the gradients of one call, and the backward that fills them."""

from __future__ import annotations

from typing import Sequence

import torch

from . import _core
from ._calls import Call, HeldCall
from ._gradients import WeightGradients
from ._raw import raw_or_none

_INPUTS = ("x", "topk_weights", "shared_weights")


class GradientTargets:
    """The gradients that are needed: those of x, topk_weights and shared_weights, then one tensor
    of each operand.

    needs: of x, topk_weights, shared_weights, then of each weight. leaves: each weight's own leaf,
    whose main_grad counts, or None.
    """

    def __init__(
        self, call: Call, needs: Sequence[bool], leaves: Sequence[torch.Tensor | None]
    ):
        t = call.tensors
        self.call = call
        self._inputs = [
            torch.empty(like.shape, dtype=like.dtype, device=like.device) if need else None
            for like, need in zip((t.x, t.topk_weights, t.shared_weights), needs)
        ]
        self.weights = WeightGradients(call.layer.operands, t.weights, leaves, needs[3:])

    def tensors(self) -> list[torch.Tensor | None]:
        return [*self._inputs, *self.weights.targets]

    def run(
        self, d_out: torch.Tensor, schedule: torch.Tensor, context: torch.Tensor
    ) -> list[torch.Tensor | None]:
        """Computes them."""
        held = self.call.hold(d_out, (schedule, context))
        self.call.backward(held, self._library_inputs(), self.weights.library_gradients())
        return self.tensors()

    def run_inputs(
        self, d_out: torch.Tensor, schedule: torch.Tensor, context: torch.Tensor
    ) -> HeldCall:
        """Computes those of the inputs, and returns what those of the weights need."""
        held = self.call.hold(d_out, (schedule, context))
        self.call.backward(held, self._library_inputs(), None)
        return held

    def _library_inputs(self) -> _core.InputGrads:
        return _core.InputGrads(
            **{name: raw_or_none(f"d_{name}", t) for name, t in zip(_INPUTS, self._inputs)}
        )
