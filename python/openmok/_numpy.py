"""`openmok.moe` for NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core, _dump
from ._groups import group_name, group_of
from ._operands import NOT_ONE_STORAGE, Arguments, fields_of
from ._plan import Options, plan_of
from .errors import MokShapeError
from .shape import Activation


def _owner(array: np.ndarray) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def stack_views(name: str, arrays: list[np.ndarray]) -> np.ndarray:
    """One view [n, ...] of n arrays of one storage; MokShapeError where they are not."""
    first = arrays[0]
    at = [a.__array_interface__["data"][0] for a in arrays]
    step = at[1] - at[0] if len(arrays) > 1 else first.nbytes
    alike = all(
        a.shape == first.shape
        and a.dtype == first.dtype
        and a.strides == first.strides
        and (_owner(a) is _owner(first))
        and at[i] == at[0] + i * step
        for i, a in enumerate(arrays)
    )
    if not alike or step % first.itemsize:
        raise MokShapeError(f"{name}: {NOT_ONE_STORAGE}")
    return np.lib.stride_tricks.as_strided(
        first, (len(arrays),) + first.shape, (step,) + first.strides, writeable=False
    )


def moe(
    x: np.ndarray,
    topk_ids: np.ndarray,
    topk_weights: np.ndarray,
    arguments: Arguments,
    shared_weights: np.ndarray | None,
    options: Options,
) -> tuple[np.ndarray, np.ndarray]:
    o = options
    activation = Activation.of(o.activation, o.limit, o.alpha)
    try:
        return _moe(x, topk_ids, topk_weights, arguments, shared_weights, options)
    except _dump.ERRORS as error:
        inputs = {
            "hidden_states": x,
            "topk_ids": topk_ids,
            "topk_weights": topk_weights,
            "shared_weights": shared_weights,
        }
        weights = arguments.operands, arguments.tensors
        layer = activation, o.precision
        _dump.add_to(error, "forward", group_name(o.group), *layer, *weights, inputs)
        raise


def _moe(
    x: np.ndarray,
    topk_ids: np.ndarray,
    topk_weights: np.ndarray,
    arguments: Arguments,
    shared_weights: np.ndarray | None,
    options: Options,
) -> tuple[np.ndarray, np.ndarray]:
    group = group_of(group_name(options.group), None)
    plan = plan_of(x, topk_ids, arguments, group.size, options)
    workspace = plan.workspace(group, x.shape[0])
    weights = _core.Weights(**fields_of(plan.operands, arguments.tensors, stack_views))
    if plan.shape.is_fp8:
        fp8 = _core.Fp8Weights(workspace)
        _core.quantize_weights(workspace, weights, fp8)
        fields = fields_of(plan.operands, arguments.tensors, stack_views)
        weights = _core.Weights(**fields, fp8=fp8)
    inputs = _core.Inputs(x=x, topk_weights=topk_weights, shared_weights=shared_weights)
    schedule = _core.Schedule(workspace, topk_ids)
    out = np.empty(x.shape, np.float32)
    _core.forward(workspace, schedule, weights, inputs, out)
    return out, np.asarray(schedule.tokens_per_expert(), np.int32)
