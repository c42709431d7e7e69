"""Bytes of what a call keeps, from numbers that may be symbols of a compiler: what
`Workspace.schedule_bytes` and `Workspace.context_bytes` ask for is never more."""

from __future__ import annotations

from typing import NamedTuple

from .shape import LayerShape, Tuning

_TILE = 128
_ALIGN = 256
_FP8_CHUNK = 128  # columns that a row of FP8 is filled up to


class Extent(NamedTuple):
    """Of one rank's call: ranks R, experts of this rank E_l, tokens T."""

    ranks: int
    local_experts: int
    tokens: int


def _round_up(number: int, unit: int) -> int:
    return (number + unit - 1) // unit * unit


def _slots(extent: Extent, shape: LayerShape, tokens: int) -> int:
    """The most slots that the tokens of a whole group can fill here."""
    if extent.local_experts == 0:
        return 0
    routes = tokens * shape.top_k
    return (routes + extent.local_experts * (_TILE - 1)) // _TILE * _TILE


def schedule_bytes(extent: Extent, shape: LayerShape, tuning: Tuning) -> int:
    """The route table, and the ids of this rank."""
    ranks, experts, tokens = extent
    slots = _slots(extent, shape, tokens if ranks == 1 else ranks * tuning.max_tokens)
    macrobatches = slots // tuning.macrobatch_rows + 1
    table = ranks + experts * (ranks + 3) + 1 + slots // _TILE + 4 * slots + 2 * macrobatches + 1
    return _round_up(4 * table, _ALIGN) + _round_up(4 * tokens * shape.top_k, _ALIGN)


def context_bytes(extent: Extent, shape: LayerShape, tuning: Tuning) -> int:
    """Gate and up of the rows that are kept, in FP8 with their scales, and x with keep_x; the
    shared expert's."""
    others = (extent.ranks - 1) * tuning.max_tokens
    rows = _slots(extent, shape, others + extent.tokens)
    if tuning.context_rows >= 0:
        rows = min(rows, tuning.context_rows)
    shared = _round_up(extent.tokens, _TILE) if shape.shared_intermediate else 0
    kept_x = 2 * rows * shape.hidden if tuning.keep_x else 0
    padded = _round_up(shape.intermediate, _FP8_CHUNK)
    row = 2 * (padded + padded // 32) if shape.is_fp8 else 4 * shape.intermediate
    return row * rows + kept_x + 4 * shared * shape.shared_intermediate
