"""Views of torch tensors as the library reads and writes them."""

from __future__ import annotations

import torch

from ._operands import NOT_ONE_STORAGE
from .errors import MokShapeError


def can_stack(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors are equal slices of one storage at equal distances."""
    first = tensors[0]
    step = tensors[1].storage_offset() - first.storage_offset() if len(tensors) > 1 else 0
    return step >= 0 and all(
        t.shape == first.shape
        and t.dtype == first.dtype
        and t.stride() == first.stride()
        and t.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and t.storage_offset() == first.storage_offset() + i * step
        for i, t in enumerate(tensors)
    )


def stack_views(name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """One view [n, ...] of n tensors of one storage; MokShapeError where they are not."""
    first = tensors[0]
    if len(tensors) == 1:
        return first.unsqueeze(0)
    if not can_stack(tensors):
        raise MokShapeError(f"{name}: {NOT_ONE_STORAGE}")
    step = tensors[1].storage_offset() - first.storage_offset()
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()))
