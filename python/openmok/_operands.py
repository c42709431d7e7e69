"""How the weights that a caller hands in become the tensors of the library, without copies."""

from __future__ import annotations

from dataclasses import dataclass
import functools
from typing import Any, Callable, Sequence

from . import _core
from .errors import MokShapeError


@dataclass(frozen=True)
class Operand:
    """One argument: `count` tensors of the caller's that are one tensor of the library, or two.

    Attributes:
        name: the caller's name for it, for errors.
        fields: the library's names: one, or two whose halves lie one after the other.
        axis: where the halves lie, counted from the end.
        per_expert: the caller's tensors are one per expert.
    """

    name: str
    fields: tuple[str, ...]
    axis: int
    per_expert: bool
    count: int

    @property
    def is_shared(self) -> bool:
        return self.fields[0].startswith("shared_")

    @property
    def is_expert_matrix(self) -> bool:
        return self.fields[0] in ("gate", "up", "down")

    def half_rows(self, rows: int) -> int:
        """Rows of gate, and of up, where both stand in one tensor."""
        if rows % 2:
            raise MokShapeError(
                f"{self.name}: expected an even number of rows in dimension {self.axis} (gate, "
                f"then up), found {rows}"
            )
        return rows // 2

    def split(self, tensor: Any) -> dict[str, Any]:
        """The views of one (stacked) tensor that the library's fields are."""
        if len(self.fields) == 1:
            return {self.fields[0]: tensor}
        rows = self.half_rows(tensor.shape[self.axis])
        rest = (slice(None),) * (-1 - self.axis)
        return {
            self.fields[0]: tensor[(..., slice(None, rows)) + rest],
            self.fields[1]: tensor[(..., slice(rows, None)) + rest],
        }


# The library's fields of each operand, and the axis where halves lie.
_FIELDS = {
    "gate_up": (("gate", "up"), -2),
    "down": (("down",), -2),
    "gate_up_bias": (("gate_bias", "up_bias"), -1),
    "down_bias": (("down_bias",), -1),
    "shared gate_up": (("shared_gate", "shared_up"), -2),
    "shared down": (("shared_down",), -2),
}


# Those of one tensor, which most calls are made of.
_WHOLE = {name: Operand(name, *of, False, 1) for name, of in _FIELDS.items()}
_TUPLE_OR_LIST = (tuple, list)


class Arguments:
    """The weights of a call: operands, and their tensors one operand after the other; the operands
    once more as a string that can stand in a compiled graph (`operands_of`)."""

    __slots__ = ("operands", "tensors", "layout")

    def __init__(self, operands: list[Operand], tensors: list[Any], layout: str):
        self.operands, self.tensors, self.layout = operands, tensors, layout

    def add(self, name: str, value: Any, dims: int) -> None:
        """Adds a weight of `dims` dimensions: a tensor, a pair for two fields, or a list of
        tensors of one dimension less, one per expert. None adds nothing."""
        if value is None:
            return
        if not isinstance(value, _TUPLE_OR_LIST):
            self._add_one(_WHOLE[name], [value], dims)
            return
        fields, axis = _FIELDS[name]
        if len(fields) == 2 and len(value) == 2 and _dims(name, value[0]) == dims:
            for field, tensor in zip(fields, value):
                half = Operand(f"{name} ({field})", (field,), axis, False, 1)
                self._add_one(half, [tensor], dims)
        elif dims == 1 - axis and len(value) > 0:
            self._add_one(Operand(name, fields, axis, True, len(value)), list(value), dims - 1)
        else:
            expected = "a tensor or a pair (gate, up)" if len(fields) == 2 else "a tensor"
            raise MokShapeError(f"{name}: expected {expected}, found {len(value)} tensors")

    def _add_one(self, operand: Operand, tensors: list[Any], dims: int) -> None:
        try:
            are_right = all([len(tensor.shape) == dims for tensor in tensors])
        except AttributeError:  # of what is no tensor
            are_right = False
        if not are_right:
            wrong = [d for d in [_dims(operand.name, t) for t in tensors] if d != dims]
            raise MokShapeError(
                f"{operand.name}: expected {dims} dimensions, found {wrong[0]}"
            )
        self.operands.append(operand)
        self.tensors.extend(tensors)
        part = _layout_part(operand)
        self.layout = f"{self.layout},{part}" if self.layout else part


def _dims(name: str, tensor: Any) -> int:
    if not hasattr(tensor, "shape"):
        raise TypeError(f"{name}: expected a tensor, found {type(tensor).__name__}")
    return len(tensor.shape)


def weights_of(
    gate_up: Any,
    down: Any,
    gate_up_bias: Any = None,
    down_bias: Any = None,
    shared: Any = None,
) -> Arguments:
    """The weights of `openmok.moe`, whose docstring has their forms."""
    arguments = Arguments([], [], "")
    arguments.add("gate_up", gate_up, 3)
    arguments.add("down", down, 3)
    arguments.add("gate_up_bias", gate_up_bias, 2)
    arguments.add("down_bias", down_bias, 2)
    if shared is not None:
        if not isinstance(shared, (list, tuple)) or len(shared) != 2:
            raise MokShapeError("shared: expected (gate_up, down), found something else")
        arguments.add("shared gate_up", shared[0], 2)
        arguments.add("shared down", shared[1], 2)
    return arguments


def layout_of(operands: Sequence[Operand]) -> str:
    """Operands as a string, which can stand in a compiled graph: "NAME" or "NAME*COUNT" for one
    tensor per expert, with commas between."""
    return ",".join([_layout_part(o) for o in operands])


def _layout_part(operand: Operand) -> str:
    return f"{operand.name}*{operand.count}" if operand.per_expert else operand.name


def core_operands_of(operands: Sequence[Operand]) -> _core.Operands:
    return _core.Operands([(o.name, list(o.fields), o.axis) for o in operands])


@functools.lru_cache
def operands_of(layout: str) -> tuple[Operand, ...]:
    """The operands of layout_of's string."""
    operands = []
    for part in layout.split(","):
        name, _, count = part.partition("*")
        whole, _, half = name.partition(" (")
        fields, axis = _FIELDS[whole]
        fields = (half.removesuffix(")"),) if half else fields
        operands.append(Operand(name, fields, axis, bool(count), int(count or 1)))
    return tuple(operands)


def fields_of(
    operands: Sequence[Operand],
    tensors: Sequence[Any],
    stack: Callable[[str, list[Any]], Any],
) -> dict[str, Any]:
    """The library's tensors by name. `stack` makes one view of tensors that lie in one storage."""
    fields: dict[str, Any] = {}
    at = 0
    for operand in operands:
        own = list(tensors[at : at + operand.count])
        at += operand.count
        fields.update(operand.split(stack(operand.name, own) if operand.per_expert else own[0]))
    return fields


NOT_ONE_STORAGE = (
    "expected experts that lie in one storage at equal distances (views of one tensor), found "
    "separate ones; keep them in one tensor [E_l, ...] and hand in that or its views"
)
