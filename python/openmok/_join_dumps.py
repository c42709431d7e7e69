"""The files of MOK_DUMP from all ranks of a group as one that `mok run` takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Sequence

import numpy as np

from . import _safetensors
from .errors import MokShapeError

_SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1}
# Every rank has the whole of these; of everything else its own part, along the first dimension.
_SHARED = ("shared_gate_proj", "shared_up_proj", "shared_down_proj")


def join_dumps(files: Sequence[str | os.PathLike[str]], joined: str | os.PathLike[str]) -> None:
    """Writes the call of a whole group of ranks as one file, which `mok run JOINED -o OUT` replays
    with as many ranks.

    Args:
        files: what MOK_DUMP has left of one call, one file of each rank, in any order.
        joined: the file to write; it appears when it is complete.

    Raises:
        MokShapeError: files that are not those of all ranks of one call.
    """
    read = [_safetensors.read(Path(file)) for file in files]
    read.sort(key=lambda file: int(file[1]["rank"]))
    tensors = [file[0] for file in read]
    metadata = [file[1] for file in read]
    ranks = [int(m["rank"]) for m in metadata]
    size = int(metadata[0]["ranks"]) if metadata else 0
    if not metadata or ranks != list(range(size)):
        raise MokShapeError(f"files: expected one of each of {size} ranks, found ranks {ranks}")
    if any(t.keys() != tensors[0].keys() for t in tensors):
        raise MokShapeError("files: expected tensors of the same names, found others")
    whole = {name: _joined(name, [t[name] for t in tensors]) for name in tensors[0]}
    counts = [t["hidden_states"][1][0] for t in tensors]
    whole["tokens_per_rank"] = ("I64", np.array(counts, np.int64))
    own = {k: v for k, v in metadata[0].items() if k not in ("rank", "replay")}
    _safetensors.write(Path(joined), whole, own)


def _joined(
    name: str, parts: list[tuple[str, list[int], bytes]]
) -> tuple[str, np.ndarray]:
    dtype, shape, _ = parts[0]
    if any(p[0] != dtype or p[1][1:] != shape[1:] for p in parts):
        raise MokShapeError(f"{name}: expected one type and width in all files, found others")
    if name in _SHARED:
        parts = parts[:1]
    rows = sum(p[1][0] for p in parts)
    elements = np.frombuffer(b"".join(p[2] for p in parts), f"V{_SIZES[dtype]}")
    return dtype, elements.reshape([rows, *shape[1:]])
