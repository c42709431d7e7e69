"""Which ranks a call runs on: groups by name, so that a name can stand in a compiled graph.

"" is this process alone, "openmok:..." a `Group`, "torch:..." a process group of torch.distributed.
"""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any
import weakref

from . import _core
from .errors import MokError

TORCH_GROUP = "torch:"  # begins the name of a process group of torch

_lock = threading.Lock()
_numbers = itertools.count(1)
_names: weakref.WeakKeyDictionary[_core.Group, str] = weakref.WeakKeyDictionary()
_by_name: weakref.WeakValueDictionary[str, _core.Group] = weakref.WeakValueDictionary()
_alone: dict[int | None, _core.Group] = {}
# By name and device: the process group of torch that it was made from, and the group.
_of_torch: dict[tuple[str, int | None], tuple[Any, _core.Group]] = {}


def default_group(cuda_device: int | None) -> _core.Group:
    """This process alone, on the CPU (None) or on one GPU."""
    with _lock:
        if cuda_device not in _alone:
            _alone[cuda_device] = (
                _core.Group.alone()
                if cuda_device is None
                else _core.Group.cuda_virtual(1, cuda_device)[0]
            )
        return _alone[cuda_device]


def group_name(group: Any) -> str:
    """The name of a group, which `openmok.moe` takes in its place.

    Args:
        group: an `openmok.Group`, a process group of torch.distributed, a DeviceMesh of one
            dimension, a name, or None: this process alone.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available():
        from ._process_groups import name_with_torch

        return name_with_torch(group)
    return name_without_torch(group)


def name_without_torch(group: Any) -> str:
    if group is None:
        return ""
    if isinstance(group, str):
        return group
    if isinstance(group, _core.Group):
        return _own_name(group)
    raise TypeError(
        "group: expected an openmok.Group, a process group of torch.distributed or a DeviceMesh, "
        f"found {type(group).__name__}"
    )


def _own_name(group: _core.Group) -> str:
    with _lock:
        name = _names.get(group)
        if name is None:
            name = _names[group] = f"openmok:{next(_numbers)}"
            _by_name[name] = group
        return name


def _torch_group(name: str) -> Any:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name[len(TORCH_GROUP) :])


def place_of(name: str) -> tuple[int, int]:
    """Rank and size of a group. Not collective."""
    if not name:
        return 0, 1
    if not name.startswith(TORCH_GROUP):
        group = _own_group(name)
        return group.rank, group.size
    from_torch = _torch_group(name)
    return from_torch.rank(), from_torch.size()


def group_of(name: str, cuda_device: int | None) -> _core.Group:
    """The group of a name. Collective the first time that a process group of torch is met."""
    if not name:
        return default_group(cuda_device)
    if not name.startswith(TORCH_GROUP):
        return _own_group(name)
    from_torch = _torch_group(name)
    if from_torch.size() == 1:
        return default_group(cuda_device)
    key = (name, cuda_device)
    with _lock:
        known = _of_torch.get(key)
    if known is not None and known[0] is from_torch:
        return known[1]
    # Outside the lock: the ranks meet here.
    from ._process_groups import connected

    group = connected(from_torch, cuda_device)
    with _lock:
        _of_torch[key] = (from_torch, group)
    return group


def group_is(name: str, device: int) -> bool:
    """Whether a group that group_of has given for this name is still the name's. device: -1: CPU."""
    if not name.startswith(TORCH_GROUP):
        return True
    known = _of_torch.get((name, device if device >= 0 else None))
    from_torch = _torch_group(name)
    return from_torch.size() == 1 or (known is not None and known[0] is from_torch)


def _own_group(name: str) -> _core.Group:
    group = _by_name.get(name)
    if group is None:
        raise MokError(f"group: expected the name of a group that exists, found {name!r}")
    return group


def forget_groups() -> None:
    """The default groups and those that were made of torch's."""
    with _lock:
        _alone.clear()
        _of_torch.clear()
