"""Torch tensors as the numbers that `_core` takes in place of a tensor: (address, type, shape,
strides, CUDA device or -1). Cheaper than DLPack; the caller keeps the tensor alive."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ._operands import Operand
from ._torch_views import stack_views
from .errors import MokShapeError

_TYPES = {torch.bfloat16: 0, torch.float32: 1, torch.int32: 2, torch.int64: 3}


def raw(name: str, tensor: torch.Tensor) -> tuple[Any, ...]:
    number = _TYPES.get(tensor.dtype)
    if number is None:
        raise MokShapeError(f"{name}: expected dtype BF16, F32, I32 or I64, found {tensor.dtype}")
    device = tensor.get_device()
    return tensor.data_ptr(), number, tensor.shape, tensor.stride(), device


def raw_or_none(name: str, tensor: torch.Tensor | None) -> tuple[Any, ...] | None:
    return None if tensor is None else raw(name, tensor)


def raw_fields_of(operand: Operand, tensor: torch.Tensor) -> dict[str, tuple[Any, ...]]:
    """The library's fields that one (stacked) tensor of an operand is."""
    whole = raw(operand.name, tensor)
    if len(operand.fields) == 1:
        return {operand.fields[0]: whole}
    address, number, shape, stride, device = whole
    axis = len(shape) + operand.axis
    rows = operand.half_rows(shape[axis])
    half = (*shape[:axis], rows, *shape[axis + 1 :])
    step = rows * stride[axis] * tensor.element_size()
    return {
        operand.fields[0]: (address, number, half, stride, device),
        operand.fields[1]: (address + step, number, half, stride, device),
    }


def raw_weights_of(
    operands: Sequence[Operand], tensors: Sequence[torch.Tensor]
) -> tuple[dict[str, tuple[Any, ...]], list[torch.Tensor]]:
    """All fields, and the tensors to keep alive."""
    fields: dict[str, tuple[Any, ...]] = {}
    kept = []
    at = 0
    for operand in operands:
        if operand.per_expert:
            tensor = stack_views(operand.name, list(tensors[at : at + operand.count]))
        else:
            tensor = tensors[at]
        at += operand.count
        kept.append(tensor)
        fields.update(raw_fields_of(operand, tensor))
    return fields, kept
