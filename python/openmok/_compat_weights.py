"""The weights of a call of `openmok.compat`: tensors, or routed ones in MXFP8."""

from __future__ import annotations

import enum
from typing import Any, Sequence, Union

import torch

from . import _core, _fp8
from ._mxfp8 import Matrix, place, require_matrix
from .errors import MokShapeError

# A tensor, or (elements, scales) or (elements, scales, transposed elements, their scales).
RoutedWeight = Union[torch.Tensor, Sequence[torch.Tensor], None]


class Pass(enum.Enum):
    FORWARD, RECOMPUTE, BACKWARD = range(3)


class Weights:
    """By the library's names."""

    FIELDS = ("gate", "up", "down", "shared_gate", "shared_up", "shared_down")

    def __init__(
        self,
        kind: Pass,
        routed: tuple[RoutedWeight, ...],
        shared: tuple[torch.Tensor | None, ...],
    ):
        self._kind = kind
        if routed[0] is None:
            raise TypeError("gate: expected a tensor, found None")
        are_absent = [t is None for t in shared]
        if any(are_absent) and not all(are_absent):
            raise MokShapeError("shared weights: expected all three or none, found some")
        self._tensors: dict[str, Any] = {}
        self._matrices: dict[str, Matrix] = {}
        is_quantized = {isinstance(w, (tuple, list)) for w in routed if w is not None}
        if len(is_quantized) > 1:
            raise MokShapeError("routed weights: expected tensors or tuples, found both")
        if is_quantized == {True}:
            self._set_matrices(routed)
        else:
            self._tensors |= zip(self.FIELDS[:3], routed)
        self._tensors |= zip(self.FIELDS[3:], shared)
        self._tensors = {n: t for n, t in self._tensors.items() if t is not None}
        gate = self._matrices["gate"].elements if self._matrices else self._tensors["gate"]
        self.num_local_experts, self.width, self._hidden = gate.shape
        self.shared_width = 0 if shared[0] is None else shared[0].shape[0]
        for name, matrix in self._matrices.items():
            require_matrix(name, matrix, self._shape_of(name))

    @property
    def precision(self) -> str:
        return "mxfp8" if self._matrices else "bf16"

    def _set_matrices(self, routed: tuple[Any, ...]) -> None:
        is_backward = self._kind is Pass.BACKWARD
        for name, parts in zip(("gate", "up", "down"), routed):
            if parts is None:
                continue
            is_down = name == "down"
            expected = 4 if is_backward and not is_down else 2
            if len(parts) != expected:
                raise MokShapeError(
                    f"{name}: expected a tuple of {expected} tensors, found {len(parts)}"
                )
            first = "down_t" if is_down and is_backward else name
            self._matrices[first] = Matrix(*parts[:2])
            if expected == 4:
                self._matrices[f"{name}_t"] = Matrix(*parts[2:4])

    def _shape_of(self, name: str) -> tuple[int, int, int]:
        is_wide = name in ("gate", "up", "down_t")
        inner = (self.width, self._hidden) if is_wide else (self._hidden, self.width)
        return (self.num_local_experts, *inner)

    def of_library(self, workspace: _core.Workspace) -> _core.Weights:
        tensors = {name: tensor.detach() for name, tensor in self._tensors.items()}
        if not self._matrices:
            return _core.Weights(**tensors)
        memory = _fp8.quantized(
            workspace,
            [part for matrix in self._matrices.values() for part in matrix],
            lambda to: place(workspace, self._matrices, to),
            is_forward=self._kind is not Pass.BACKWARD,
        )
        return _core.Weights(**tensors, fp8=memory)

    def into(self, main_grads: Sequence[torch.Tensor | None]) -> dict[str, torch.Tensor]:
        """Buffers of the reference's order by the library's names."""
        order = ("shared_gate", "gate", "shared_up", "up", "shared_down", "down")
        if len(main_grads) != len(order):
            raise MokShapeError(
                f"main_grads: expected 6 buffers ({', '.join(order)}), found {len(main_grads)}"
            )
        given = {name: buffer for name, buffer in zip(order, main_grads) if buffer is not None}
        expected = self.fresh_shapes()
        if given.keys() != expected.keys():
            raise MokShapeError(
                f"main_grads: expected buffers of {', '.join(expected)}, found those of "
                f"{', '.join(given)}"
            )
        return given

    def fresh_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the gradients, by name."""
        shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        if self._matrices:
            shapes |= {name: self._shape_of(name) for name in self.FIELDS[:3]}
        return shapes

    def fresh_gradients(self) -> dict[str, torch.Tensor]:
        """Of each weight's shape and dtype, not written yet; of MXFP8 in BF16."""
        made = {
            name: torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for name, tensor in self._tensors.items()
        }
        if self._matrices:
            device = self._matrices["gate"].elements.device
            for name in self.FIELDS[:3]:
                shape = self._shape_of(name)
                made[name] = torch.empty(shape, dtype=torch.bfloat16, device=device)
        return made
