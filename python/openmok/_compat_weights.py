"""The weights of a call of `openmok.compat`: tensors, or routed ones in MXFP8."""

from __future__ import annotations

import enum
from typing import Any, Sequence, Union

import torch

from . import _core, _fp8
from ._compat_forms import (
    ExpertTable,
    SplitRoutedWeight,
    are_one,
    halves_of,
    orientations_of,
    without_splits,
)
from ._mxfp8 import Matrix, place, require_matrix
from .errors import MokShapeError

# A tensor, or (elements, scales) or (elements, scales, transposed elements, their scales), or of
# experts apart.
RoutedWeight = Union[torch.Tensor, Sequence[torch.Tensor], SplitRoutedWeight, None]


class Pass(enum.Enum):
    FORWARD, RECOMPUTE, BACKWARD = range(3)


class Weights:
    """By the library's names. Gate and up may be the same matrix, [E_l, 2I, H]."""

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
        parts = without_splits(routed, kind is Pass.BACKWARD)
        self._is_fused = are_one(parts[0], parts[1])
        is_quantized = {isinstance(w, (tuple, list)) for w in parts if w is not None}
        if len(is_quantized) > 1:
            raise MokShapeError("routed weights: expected tensors or tuples, found both")
        if is_quantized == {True}:
            self._set_matrices(parts)
        else:
            if self._is_fused:
                parts[:2] = halves_of("gate", parts[0].detach(), 1)
            self._tensors |= zip(self.FIELDS[:3], parts)
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

    def _set_matrices(self, routed: Sequence[Any]) -> None:
        is_backward = self._kind is Pass.BACKWARD
        found = {
            name: orientations_of(name, parts, is_backward)
            for name, parts in zip(self.FIELDS[:3], routed)
            if parts is not None
        }
        if self._is_fused:
            found["gate"], found["up"] = found["gate"].halves("gate")
        for name, (normal, transposed) in found.items():
            if normal is not None:
                self._matrices[name] = normal
            if transposed is not None:
                self._matrices[f"{name}_t"] = transposed

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

    def into(
        self,
        main_grads: Sequence[torch.Tensor | None],
        tables: Sequence[ExpertTable] | None,
    ) -> Targets:
        """Buffers of the reference's order. tables: of the routed gate, up and down, whose buffers
        among main_grads are then expert 0's alone."""
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
        targets, apart = dict(given), []
        if tables is not None:
            names = self.FIELDS[:3]
            if len(tables) != len(names):
                raise MokShapeError(
                    f"main_grad_storage_tables: expected 3 ({', '.join(names)}), found "
                    f"{len(tables)}"
                )
            for name, table in zip(names, tables):
                if not isinstance(table, ExpertTable):
                    raise MokShapeError(
                        "main_grad_storage_tables: expected tables of "
                        f"make_routed_d_weight_storage_table, found {type(table).__name__}"
                    )
                if name == "up" and table is tables[0]:
                    targets[name] = targets["gate"]
                elif table.is_in_place():
                    targets[name] = table.stacked()
                else:
                    shape = (len(table.tensors), *table.tensors[0].shape)
                    targets[name] = torch.zeros(shape, device=table.tensors[0].device)
                    apart.append((targets[name], table.tensors))
        if are_one(targets["gate"], targets["up"]):
            targets["gate"], targets["up"] = halves_of("main_grads", targets["gate"], 1)
        return Targets(targets, given, apart)

    def fresh_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the gradients, by name."""
        shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        if self._matrices:
            shapes |= {name: self._shape_of(name) for name in self.FIELDS[:3]}
        return shapes

    def fresh_gradients(self) -> Targets:
        """Of each weight's shape and dtype, not written yet; of MXFP8 in BF16. Of gate and up in one
        also."""
        made = {
            name: torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for name, tensor in self._tensors.items()
            if not self._is_fused or name not in ("gate", "up")
        }
        if self._matrices:
            device = self._matrices["gate"].elements.device
            for name in self.FIELDS[:3]:
                shape = self._shape_of(name)
                made[name] = torch.empty(shape, dtype=torch.bfloat16, device=device)
        found = dict(made)
        if self._is_fused:
            like = self._tensors.get("gate", made.get("gate"))
            assert like is not None
            count, width, hidden = like.shape
            both = torch.empty(
                (count, 2 * width, hidden), dtype=like.dtype, device=like.device
            )
            made["gate"], made["up"] = halves_of("gate", both, 1)
            found["gate"] = found["up"] = both
        return Targets(made, found, [])


class Targets:
    """Where the gradients of the weights go.

    tensors: what the library writes, by its names. found: what the caller gets. apart: sums, and the
    buffers of the experts to which they are added at the end.
    """

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        found: dict[str, torch.Tensor],
        apart: list[tuple[torch.Tensor, list[torch.Tensor]]],
    ):
        self.tensors, self.found, self._apart = tensors, found, apart

    def finish(self) -> tuple[torch.Tensor | None, ...]:
        for sums, buffers in self._apart:
            for buffer, one in zip(buffers, sums):
                buffer.add_(one)
        return tuple([self.found.get(name) for name in Weights.FIELDS])
