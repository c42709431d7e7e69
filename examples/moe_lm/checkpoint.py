"""Checkpoints by torch.distributed.checkpoint, which any number of ranks can go on from.

An expert's tensors are DTensors, sharded over the ranks along the experts; of everything else every
rank has all. A checkpoint is a folder step-N that appears when it is complete.
"""

from __future__ import annotations

import json
from pathlib import Path
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from .job import Job
from .trainer import Trainer

# What must be the same for a checkpoint to fit.
_SHAPE = ("layers", "hidden", "heads", "intermediate", "experts", "top_k", "length")


def _state_of(trainer: Trainer, job: Job) -> dict[str, torch.Tensor]:
    """By name; loading writes into these very tensors."""
    mesh = DeviceMesh(job.device.type, range(job.size)) if job.size > 1 else None
    state = {}
    for name, master in zip(trainer.names, trainer.masters):
        moments = trainer.moments(master)
        for kind, tensor in (
            ("master", master),
            ("exp_avg", moments["exp_avg"]),
            ("exp_avg_sq", moments["exp_avg_sq"]),
        ):
            is_part = mesh is not None and name in trainer.expert_names
            whole = DTensor.from_local(tensor, mesh, [Shard(0)]) if is_part else tensor
            state[f"{kind}.{name}"] = whole
    return state


def save(folder: Path, step: int, trainer: Trainer, job: Job) -> None:
    """Of the state after so many steps. Collective."""
    part, complete = folder / f"step-{step}.part", folder / f"step-{step}"
    if job.rank == 0:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        shape = {name: getattr(trainer.config, name) for name in _SHAPE}
        (part / "shape.json").write_text(json.dumps(shape))
    _meet(job)
    dcp.save(_state_of(trainer, job), checkpoint_id=part, no_dist=job.size == 1)
    _meet(job)
    if job.rank == 0:
        shutil.rmtree(complete, ignore_errors=True)
        part.rename(complete)
    _meet(job)


def newest(folder: Path) -> tuple[Path, int] | None:
    """The checkpoint of the most steps, and their number."""
    found = [(p, int(p.name[5:])) for p in folder.glob("step-*") if p.name[5:].isdigit()]
    return max(found, key=lambda one: one[1], default=None)


def load(checkpoint: Path, step: int, trainer: Trainer, job: Job) -> None:
    """Sets the trainer to the state after so many steps. Collective."""
    saved = json.loads((checkpoint / "shape.json").read_text())
    for name, found in saved.items():
        expected = getattr(trainer.config, name)
        if found != expected:
            option = name.replace("_", "-")
            sys.exit(f"{checkpoint}: expected a model of --{option} {expected}, found {found}")
    dcp.load(_state_of(trainer, job), checkpoint_id=checkpoint, no_dist=job.size == 1)
    for master in trainer.masters:
        trainer.moments(master)["step"].fill_(step)
    trainer.write_parameters()


def _meet(job: Job) -> None:
    if job.size > 1:
        dist.barrier()
