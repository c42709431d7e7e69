"""The routed experts' weights in FP8 for calls on torch tensors.

Each set of weights has one memory, at one address for as long as its storage and the workspace
live. It is filled when a call first needs it and again when the weights may have changed: after a step of
any optimizer of torch.optim, after whatever torch counts as a write (a tensor's version), and after
`invalidate_quantized_weights`. What is captured into a CUDA graph fills it in every forward, for a
replay asks nobody.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _core, _workspaces

_lock = threading.Lock()
_steps = 0


class _Entry:
    """The memory of one set of weights, and of what state of them it was filled."""

    def __init__(self, storages: list[StorageWeakRef], workspace: _core.Workspace):
        self.storages, self.workspace = storages, workspace
        self.memory = _core.Fp8Weights(workspace)
        self.state: tuple[Any, ...] | None = None
        self.is_captured = False

    def is_dead(self) -> bool:
        is_replaced = not self.is_captured and not _workspaces.is_cached(self.workspace)
        return is_replaced or any(storage.expired() for storage in self.storages)

    def needs_filling(self, state: tuple[Any, ...], is_capturing: bool, is_forward: bool) -> bool:
        if is_capturing:
            return is_forward or not self.is_captured
        # What was captured may have run, and changed the weights, without anybody's knowledge.
        return self.is_captured or state[0] is None or self.state != state


_entries: dict[tuple[Any, ...], _Entry] = {}


def quantized(
    workspace: _core.Workspace,
    weights: Sequence[torch.Tensor],
    fill: Callable[[_core.Fp8Weights], None],
    is_forward: bool,
) -> _core.Fp8Weights:
    """The memory of these weights, filled.

    Args:
        workspace: the call's.
        weights: every tensor of gate, up and down.
        fill: quantises the weights into a memory.
        is_forward: of the pass that asks.
    """
    storages = [w.untyped_storage() for w in weights]
    parts = [(w.storage_offset(), w.shape, w.stride(), w.dtype) for w in weights]
    key = (id(workspace), *[s._cdata for s in storages], *parts)
    with _lock:
        entry = _entries.get(key)
        if entry is None or entry.workspace is not workspace:
            _forget_dead()
            # A weak reference keeps the storage's number from being another's.
            entry = _Entry([StorageWeakRef(s) for s in storages], workspace)
            _entries[key] = entry
    is_capturing = weights[0].is_cuda and torch.cuda.is_current_stream_capturing()
    state = _state_of(weights)
    if entry.needs_filling(state, is_capturing, is_forward):
        fill(entry.memory)
        entry.state = state
        entry.is_captured = entry.is_captured or is_capturing
    return entry.memory


def _state_of(weights: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Equal while the weights are; (None,): nobody counts."""
    if any([w.is_inference() for w in weights]):
        return (None,)
    return (_steps, *[w._version for w in weights])


def _forget_dead() -> None:
    for key in [key for key, entry in _entries.items() if entry.is_dead()]:
        del _entries[key]


def bytes_held() -> int:
    with _lock:
        return sum(entry.memory.bytes for entry in _entries.values())


def _clear() -> None:
    with _lock:
        _entries.clear()


def invalidate(*_: Any) -> None:
    """Every memory is filled again when it is next needed."""
    global _steps
    with _lock:
        _steps += 1


register_optimizer_step_post_hook(invalidate)
_workspaces.at_clear(_clear, bytes_held)
