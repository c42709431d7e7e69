"""Weights that are DTensors: the experts of this rank are their local part."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, Shard

from ._operands import Arguments, Operand
from .errors import MokShapeError


def local_parts(arguments: Arguments) -> Arguments:
    """The same weights with DTensors' local parts, through which gradients find their way back."""
    if not any([isinstance(tensor, DTensor) for tensor in arguments.tensors]):
        return arguments
    operands = [o for o in arguments.operands for _ in range(o.count)]
    local = [_local_part(o, tensor) for o, tensor in zip(operands, arguments.tensors)]
    return Arguments(arguments.operands, local, arguments.layout)


def _local_part(operand: Operand, tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, DTensor):
        return tensor
    # A gradient of the layer is one rank's whole sum for its own experts, and nothing else.
    is_by_expert = tensor.placements == (Shard(0),)
    if operand.is_shared or operand.per_expert or not is_by_expert:
        expected = "a plain tensor" if operand.is_shared else "a DTensor of placement (Shard(0),)"
        raise MokShapeError(
            f"{operand.name}: expected {expected}, found a DTensor of placement "
            f"{tuple(tensor.placements)}"
        )
    return tensor.to_local()
