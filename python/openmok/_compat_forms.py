"""Forms in which callers of `openmok.compat` hand in routed weights: gate and up as one matrix, each
expert in a memory of its own, transposed elements that lie as the matrix does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Sequence

import torch

from ._mxfp8 import Matrix
from ._torch_views import can_stack, stack_views
from .errors import MokShapeError

_TILE = 128  # of scales


class ExpertTable:
    """One tensor of each expert, all of one shape and dtype.

    Where they are slices of one storage at equal distances they are read and written in place;
    otherwise each call copies weights together, and adds gradients to each buffer apart.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self.tensors = list(tensors)
        if not self.tensors:
            raise MokShapeError("storage table: expected a tensor of each expert, found none")
        first = self.tensors[0]
        for tensor in self.tensors:
            if tensor.shape != first.shape or tensor.dtype != first.dtype:
                raise MokShapeError(
                    f"storage table: expected tensors {list(first.shape)} {first.dtype}, found "
                    f"{list(tensor.shape)} {tensor.dtype}"
                )

    def is_in_place(self) -> bool:
        return can_stack(self.tensors)

    def stacked(self) -> torch.Tensor:
        """[E_l, ...], a view where that can be."""
        tensors = [t.detach() for t in self.tensors]
        return stack_views("storage table", tensors) if can_stack(tensors) else torch.stack(tensors)


@dataclass(frozen=True)
class SplitRoutedWeight:
    """One routed matrix of all experts, each expert's in a memory of its own, with the fields of the
    reference's class. `data` and `scale` are expert 0's; the tables are ExpertTables.

    native_columnwise: the transposed elements lie as the matrix does, [rows, columns].
    """

    data: torch.Tensor
    storage_table: ExpertTable
    scale: torch.Tensor | None = None
    scale_storage_table: ExpertTable | None = None
    scale_tensors: tuple[torch.Tensor, ...] | None = None
    transposed_data: torch.Tensor | None = None
    transposed_scale: torch.Tensor | None = None
    transposed_storage_table: ExpertTable | None = None
    transposed_scale_storage_table: ExpertTable | None = None
    transposed_scale_tensors: tuple[torch.Tensor, ...] | None = None
    native_columnwise: bool = False

    def parts(self, name: str, is_backward: bool) -> torch.Tensor | tuple[Any, ...]:
        """As the pass takes a matrix of that name: a tensor, or a tuple of MXFP8."""
        if self.scale_storage_table is None:
            return self.storage_table.stacked()
        rows = self.storage_table.stacked(), self.scale_storage_table.stacked()
        if not is_backward:
            return rows
        if self.transposed_storage_table is None or self.transposed_scale_storage_table is None:
            raise MokShapeError(f"{name}: expected transposed elements and scales, found none")
        transposed = (
            self.transposed_storage_table.stacked(),
            self.transposed_scale_storage_table.stacked(),
            self.native_columnwise,
        )
        return transposed if name == "down" else (*rows, *transposed)


def without_splits(routed: Sequence[Any], is_backward: bool) -> list[Any]:
    """Gate, up and down with each SplitRoutedWeight's parts in its place; gate and up that are one
    stay one."""
    found: list[Any] = []
    for name, weight in zip(("gate", "up", "down"), routed):
        if name == "up" and weight is routed[0]:
            found.append(found[0])
        elif isinstance(weight, SplitRoutedWeight):
            found.append(weight.parts(name, is_backward))
        else:
            found.append(weight)
    return found


def table(tensors: Sequence[torch.Tensor]) -> ExpertTable:
    """Of one tensor of each expert: the table of a SplitRoutedWeight, or of main_grads."""
    return ExpertTable(tensors)


# ---- Gate and up as one matrix ----------------------------------------------------------------
def are_one(gate: Any, up: Any) -> bool:
    """Whether gate and up are the same [E_l, 2I, H], handed in twice."""
    if gate is up:
        return True
    if not isinstance(gate, torch.Tensor) or not isinstance(up, torch.Tensor):
        return False
    return (
        gate.numel() > 0
        and gate.data_ptr() == up.data_ptr()
        and gate.shape == up.shape
        and gate.stride() == up.stride()
    )


def halves_of(name: str, both: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    if both.dim() <= dim or both.shape[dim] % 2 != 0:
        raise MokShapeError(
            f"{name}: expected gate, then up in dimension {dim}, found shape {list(both.shape)}"
        )
    gate, up = both.chunk(2, dim)
    return gate, up


# ---- MXFP8 ------------------------------------------------------------------------------------
class Orientations(NamedTuple):
    """A matrix of all experts with blocks along its rows, along its columns, or both."""

    normal: Matrix | None
    transposed: Matrix | None

    def halves(self, name: str) -> tuple[Orientations, Orientations]:
        """Of gate and up in one."""
        gate, up = _halves(name, self.normal, 1)
        gate_t, up_t = _halves(name, self.transposed, 2)
        return Orientations(gate, gate_t), Orientations(up, up_t)


def _halves(
    name: str, both: Matrix | None, dim: int
) -> tuple[Matrix | None, Matrix | None]:
    if both is None:
        return None, None
    elements = halves_of(name, both.elements, dim)
    count, outer, k = both.elements.shape
    if (outer, k)[dim - 1] % (2 * _TILE) != 0 or both.scales.numel() * 32 != count * outer * k:
        raise MokShapeError(
            f"{name}: expected gate, then up, of multiples of 128, with a scale for 32 elements, "
            f"found elements {list(both.elements.shape)}, {both.scales.numel()} scales"
        )
    tiles = both.scales.reshape(count, outer // _TILE, k // _TILE, 32, 16)
    scales = halves_of(name, tiles, dim)
    return Matrix(elements[0], scales[0]), Matrix(elements[1], scales[1])


def orientations_of(name: str, parts: Sequence[Any], is_backward: bool) -> Orientations:
    """Of a tuple of `mxfp8_quantize`'s. A backward's may end with True: transposed elements lie as
    the matrix does."""
    is_down = name == "down"
    expected = 4 if is_backward and not is_down else 2
    is_native = False
    if is_backward and len(parts) == expected + 1 and isinstance(parts[-1], bool):
        *parts, is_native = parts
    if len(parts) != expected:
        raise MokShapeError(f"{name}: expected a tuple of {expected} tensors, found {len(parts)}")
    normal = None if is_backward and is_down else Matrix(*parts[:2])
    transposed = Matrix(*parts[-2:]) if is_backward else None
    if is_native and transposed is not None:
        transposed = Matrix(transposed.elements.transpose(-1, -2), transposed.scales)
    return Orientations(normal, transposed)
