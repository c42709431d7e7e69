"""Views of torch tensors as the library reads and writes them."""

from __future__ import annotations

import torch

from . import _core
from ._operands import NOT_ONE_STORAGE
from .errors import MokShapeError


def _step_of(tensors: list[torch.Tensor]) -> int | None:
    """Elements between tensors that are equal slices of one storage at equal distances; None where
    they are not."""
    step = _core.equal_step(tensors)
    if step < 0:
        return None
    first, num = tensors[0], len(tensors)
    if num > 1 and first.numel() > 0:
        # The last one's end lies in the first one's storage, and so does what is between.
        extent = 1 + sum([(n - 1) * s for n, s in zip(first.shape, first.stride())])
        end = first.storage_offset() + (num - 1) * step + extent
        if end * first.element_size() > first.untyped_storage().nbytes():
            return None
    return step


def can_stack(tensors: list[torch.Tensor]) -> bool:
    """Whether tensors are equal slices of one storage at equal distances."""
    return _step_of(tensors) is not None


def stack_views(name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """One view [n, ...] of n tensors of one storage; MokShapeError where they are not."""
    first = tensors[0]
    if len(tensors) == 1:
        return first.unsqueeze(0)
    step = _step_of(tensors)
    if step is None:
        raise MokShapeError(f"{name}: {NOT_ONE_STORAGE}")
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()))
