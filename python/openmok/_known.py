"""Calls of `openmok.moe` that were made before, found by the identity of their weights: what they
are made of need not be read again. Knows nothing of torch."""

from __future__ import annotations

from typing import Any, NamedTuple
import weakref

from . import _core

Weights = tuple[Any, ...]


class Call(NamedTuple):
    plan: Any
    options: tuple[Any, ...]  # the arguments from `group` to `num_experts`
    there: tuple[int, ...]  # which of `flat`'s there are: the plan's operands, in its order
    likeness: _core.Likeness  # of shapes
    references: list[weakref.ref[Any]]


_calls: dict[tuple[int, ...], Call] = {}
_MOST = 4096


def flat(
    gate_up: Any, down: Any, gate_up_bias: Any, down_bias: Any, shared: Any
) -> Weights:
    """The weights of a call in the order of `_operands.weights_of`, pairs as two, None where there
    is none."""
    if gate_up_bias is None and down_bias is None and shared is None:
        return (*gate_up, down) if type(gate_up) is tuple else (gate_up, down)
    parts: list[Any] = []
    of_shared = shared if type(shared) is tuple else (shared,)
    for value in (gate_up, down, gate_up_bias, down_bias, *of_shared):
        if type(value) is tuple:
            parts += value
        else:
            parts.append(value)
    return tuple(parts)


def find(weights: Weights) -> Call | None:
    return _calls.get(tuple(map(id, weights)))


def remember(
    weights: Weights,
    plan: Any,
    options: tuple[Any, ...],
    inputs: tuple[Any, Any],  # x, topk_ids
    plain_types: tuple[type, ...],  # of the tensors of calls that may be found
) -> None:
    """Until one of the weights, leaves of autograd's graph, is gone, or `forget_all`. A later call of
    the same weights takes an earlier one's place."""
    key = tuple(map(id, weights))
    there = tuple(i for i, weight in enumerate(weights) if weight is not None)
    if len(_calls) >= _MOST:
        _calls.clear()
    try:
        references = [weakref.ref(weights[i], lambda _: _calls.pop(key, None)) for i in there]
    except TypeError:  # a list of tensors
        return
    likeness = _core.Likeness(*inputs, tuple([weights[i] for i in there]), plain_types)
    _calls[key] = Call(plan, options, there, likeness, references)


def forget_all() -> None:
    _calls.clear()
