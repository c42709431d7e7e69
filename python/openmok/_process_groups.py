"""Groups of the layer from process groups of torch.distributed."""

from __future__ import annotations

import secrets
import socket
from typing import Any

import torch
import torch.distributed as dist

from torch.distributed.device_mesh import DeviceMesh

from . import _core
from ._groups import TORCH_GROUP, name_without_torch
from .errors import MokError, MokShapeError


def name_with_torch(group: Any) -> str:
    """`group_name` in a form that torch's compiler can follow."""
    if group is None:
        return ""
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise MokShapeError(
                f"group: expected a DeviceMesh of one dimension, found one of {group.ndim}; "
                "mesh[NAME] is one of its dimensions"
            )
        group = group.get_group()
    if isinstance(group, dist.ProcessGroup):
        return TORCH_GROUP + group.group_name
    return name_without_torch(group)


def connected(group: Any, cuda_device: int | None) -> _core.Group:
    """The same ranks as a group of the layer, each with its GPU. Collective.

    Rank 0 tells the others over `group` where it listens; from then on the layer's ranks talk to
    each other by themselves, and share memory through NCCL windows.
    """
    if cuda_device is None:
        raise MokError(
            f"group: expected tensors on a GPU for a process group of {group.size()} ranks, found "
            "tensors on the CPU, whose ranks are threads of one process"
        )
    hosts: list[Any] = [None] * group.size()
    dist.all_gather_object(hosts, socket.gethostname(), group=group)
    point, job = _meeting_point(group, hosts)
    rank = group.rank()
    local_rank = hosts[:rank].count(hosts[rank])
    return _core.Group.cuda_connect(
        point, rank, group.size(), local_rank, cuda_device, job, _timeout_seconds(group)
    )


def _meeting_point(group: Any, hosts: list[str]) -> tuple[_core.MeetingPoint, str]:
    """Where rank 0 listens, and what tells this group from others."""
    told: list[Any] = [None, None, None, ""]
    point = None
    if group.rank() == 0:
        try:
            point = _core.MeetingPoint.listen("localhost" if len(set(hosts)) == 1 else hosts[0])
            told = [point.host, point.port, secrets.token_hex(16), ""]
        except MokError as error:
            told[3] = f"rank 0 of the group: {error}"
    dist.broadcast_object_list(told, src=dist.get_global_rank(group, 0), group=group)
    host, port, job, why_not = told
    if why_not:
        raise MokError(why_not)
    return point or _core.MeetingPoint(host, port), job


def _timeout_seconds(group: Any) -> float | None:
    """The process group's own bound; None: the layer's default, where it does not say."""
    try:
        backend = group._get_backend(torch.device("cuda"))
    except RuntimeError:  # torch's word for a group without a backend for GPUs
        return None
    options = getattr(backend, "options", None)
    timeout = getattr(options, "_timeout", None)
    return timeout.total_seconds() if timeout is not None else None
