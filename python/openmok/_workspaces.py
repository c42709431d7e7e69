"""One workspace for each group, shape and tuning, shared by all layers of that shape."""

from __future__ import annotations

import atexit
import threading
from typing import Callable

from . import _core, _known
from ._groups import forget_groups
from .errors import MokShapeError
from .shape import LayerShape, Tuning

_lock = threading.Lock()
_workspaces: dict[tuple[_core.Group, LayerShape, Tuning], _core.Workspace] = {}
# Smaller ones that larger ones have replaced, and that a CUDA graph may still hold.
_replaced: list[_core.Workspace] = []
# What else belongs to workspaces: how it is forgotten, and its bytes.
_others: list[tuple[Callable[[], None], Callable[[], int]]] = []
# Counts up whenever a workspace that somebody may remember is not the cached one any more.
epoch = 0


def workspace_for(
    group: _core.Group, shape: LayerShape, tuning: Tuning, num_tokens: int
) -> _core.Workspace:
    """The cached workspace, made or enlarged where needed. Collective."""
    if group.size > 1 and tuning.max_tokens <= 0:
        raise MokShapeError(
            "tuning.max_tokens: expected the same number above 0 on every rank of a group of "
            f"{group.size} ranks, found {tuning.max_tokens}"
        )
    key = (group, shape, tuning)
    found = _workspaces.get(key)
    if found is not None and (tuning.max_tokens > 0 or found.max_tokens >= num_tokens):
        return found
    max_tokens = tuning.max_tokens or 1 << (max(num_tokens, 1) - 1).bit_length()
    # Outside the lock: ranks that are threads meet in this constructor. Calls in flight keep the
    # smaller workspace that this one replaces.
    made = _core.Workspace(group, shape, tuning, max_tokens)
    global epoch
    with _lock:
        if found is not None and found._may_be_captured:
            _replaced.append(found)
        _workspaces[key] = made
        epoch += 1
    return made


def workspace_bytes() -> int:
    """Bytes that the cached workspaces and quantised weights hold, none of which torch's allocator
    knows of."""
    with _lock:
        held = sum(workspace.bytes for workspace in (*_workspaces.values(), *_replaced))
    return held + sum(bytes_held() for _, bytes_held in _others)


def is_cached(workspace: _core.Workspace) -> bool:
    """Whether it serves new calls; otherwise a larger one has replaced it."""
    return any(cached is workspace for cached in _workspaces.values())


def at_clear(forget: Callable[[], None], bytes_held: Callable[[], int]) -> None:
    """Has `clear_workspaces` forget something else too, and `workspace_bytes` count it."""
    _others.append((forget, bytes_held))


def clear_workspaces() -> None:
    """Forgets every cached workspace, quantised weights, the default groups and those made of
    torch's process groups.

    Collective where a group has ranks in several processes. A backward that comes later makes its
    workspace again.
    """
    global epoch
    with _lock:
        _workspaces.clear()
        _replaced.clear()
        epoch += 1
    _known.forget_all()
    for forget, _ in _others:
        forget()
    forget_groups()


def synchronize() -> None:
    """Waits for the calls so far, and raises what went wrong in them on a GPU."""
    with _lock:
        workspaces = list(_workspaces.values())
    for workspace in workspaces:
        workspace.synchronize()


atexit.register(clear_workspaces)
