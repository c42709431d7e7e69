"""Writing safetensors files, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
import tempfile
from typing import Mapping

import numpy as np


def write(
    path: Path, tensors: Mapping[str, tuple[str, np.ndarray]], metadata: Mapping[str, str]
) -> None:
    """tensors: by name, the format's name of the type ("BF16", "F32", "I64"...) and the elements as
    an array of that size. The file appears under its name when it is complete and on the disk."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (dtype, array) in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            for _, array in tensors.values():
                file.write(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


def read(path: Path) -> tuple[dict[str, tuple[str, list[int], bytes]], dict[str, str]]:
    """A file that write() has made: by name the format's type, the shape and the bytes; metadata."""
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:begin])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], whole[begin + first : begin + last])
    return tensors, metadata
