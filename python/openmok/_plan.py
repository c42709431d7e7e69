"""What a call of `moe` is made of, read from its arguments once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _core
from ._operands import Arguments, Operand
from ._workspaces import workspace_for
from .errors import MokShapeError
from .shape import Activation, LayerShape, Tuning, require_precision


class Options(NamedTuple):
    """The arguments of `moe` that are no tensors."""

    group: Any = None
    activation: str | Activation = "swiglu"
    limit: float | None = None
    alpha: float | None = None
    precision: str = "bf16"
    tuning: Tuning | None = None
    num_experts: int | None = None
    delayed_wgrads: list[Any] | None = None


@dataclass(frozen=True)
class Plan:
    shape: LayerShape
    tuning: Tuning
    operands: tuple[Operand, ...]
    num_local_experts: int

    def workspace(self, group: _core.Group, num_tokens: int) -> _core.Workspace:
        return workspace_for(group, self.shape, self.tuning, num_tokens)


def _require_dims(name: str, tensor: Any, dims: int) -> None:
    if len(tensor.shape) != dims:
        raise MokShapeError(
            f"{name}: expected {dims} dimensions, found shape {list(tensor.shape)}"
        )


def plan_of(x: Any, topk_ids: Any, arguments: Arguments, num_ranks: int, o: Options) -> Plan:
    """Reads the shape of the layer from the tensors; the library checks each against it."""
    _require_dims("x", x, 2)
    _require_dims("topk_ids", topk_ids, 2)
    require_precision(o.precision)
    if topk_ids.shape[0] != x.shape[0]:
        raise MokShapeError(
            f"topk_ids: expected shape [{x.shape[0]}, K], found {list(topk_ids.shape)}"
        )
    sizes: dict[str, list[int]] = {"shared down": [0, 0]}
    at = 0
    for operand in arguments.operands:
        if operand.name in ("down", "shared down"):
            own = list(arguments.tensors[at].shape)
            sizes[operand.name] = [operand.count] + own if operand.per_expert else own
        at += operand.count
    local_experts, _, intermediate = sizes["down"]
    shape = LayerShape(
        hidden=x.shape[1],
        intermediate=intermediate,
        num_experts=o.num_experts or local_experts * num_ranks,
        top_k=topk_ids.shape[1],
        shared_intermediate=sizes["shared down"][1],
        activation=Activation.of(o.activation, o.limit, o.alpha),
        precision=o.precision,
    )
    return Plan(shape, o.tuning or Tuning(), tuple(arguments.operands), local_experts)
