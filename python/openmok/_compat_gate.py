"""The gate on the shared expert's output in calls of `openmok.compat`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from .errors import MokShapeError


class OutputGate:
    """sigmoid(x w^T) of each token, F32 [T], by torch's own operations.

    Args:
        weight: w, [1, H].
        x: [T, H].
        has_shared: whether there is a shared expert to weigh.
    """

    def __init__(self, weight: torch.Tensor, x: torch.Tensor, has_shared: bool):
        if not has_shared:
            raise MokShapeError("shared_output_gate_weight: expected shared weights too, found none")
        if tuple(weight.shape) != (1, x.shape[-1]):
            raise MokShapeError(
                f"shared_output_gate_weight: expected shape [1, {x.shape[-1]}], found "
                f"{list(weight.shape)}"
            )
        self._weight, self._x = weight.detach().float(), x.detach().float()
        with torch.autocast(x.device.type, enabled=False):
            self.values = F.linear(self._x, self._weight).sigmoid().squeeze(-1)

    def backward(
        self, d_values: torch.Tensor, d_x: torch.Tensor, main_grad: torch.Tensor | None
    ) -> torch.Tensor:
        """Adds the gate's part to d_x, which is rounded a second time by that. Returns the gradient
        of w, F32 [1, H], or the buffer to which it was added."""
        with torch.autocast(d_x.device.type, enabled=False):
            d_logits = (d_values * self.values * (1 - self.values)).unsqueeze(-1)
            d_x.copy_(d_x.float() + d_logits * self._weight)
            d_weight = d_logits.t() @ self._x
        return d_weight if main_grad is None else main_grad.add_(d_weight.view_as(main_grad))
