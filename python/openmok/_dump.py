"""MOK_DUMP=FOLDER: the tensors of a call that failed, as a file that `mok run` takes.

The variable is read when openmok is imported. Where it is set, every call on a GPU waits for its
end (but for captured ones), so that what goes wrong on the device is known with the call's tensors.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any, Sequence

import numpy as np

from . import _safetensors
from ._groups import place_of
from ._operands import Operand
from .errors import MokError, MokShapeError, MokTimeout
from .shape import Activation

FOLDER = os.environ.get("MOK_DUMP", "")
ERRORS = (MokError, MokShapeError, MokTimeout)

_numbers = itertools.count(1)
_OF_BITS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}
_OF_BITS |= {"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8"}
# The library's names of weights in the file's.
_NAMES = {
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
    "gate_bias": "gate_bias",
    "up_bias": "up_bias",
    "down_bias": "down_bias",
    "shared_gate": "shared_gate_proj",
    "shared_up": "shared_up_proj",
    "shared_down": "shared_down_proj",
}


class _NotReadable(Exception):
    pass


def add_to(
    error: MokError | MokShapeError | MokTimeout,
    call: str,
    group: str,
    activation: Activation,
    precision: str,
    operands: Sequence[Operand],
    weights: Sequence[Any],
    inputs: dict[str, Any],
) -> None:
    """Writes a call's tensors and has the error's sentence name the file, or say why there is none.
    Does nothing without MOK_DUMP, and for an error that names a file already.

    weights: of operands, one after the other. inputs: by `mok run`'s names; None: absent.
    """
    if not FOLDER or error.dump is not None:
        return
    rank, ranks = place_of(group)
    name = f"openmok-{os.getpid()}-{next(_numbers)}-rank{rank}.safetensors"
    path = Path(FOLDER) / name
    replay = f"mok run {path} -o OUT.safetensors{_options(activation)}"
    if precision != "bf16":
        replay += f" --precision {precision}"
    metadata = {
        "call": call,
        "error": str(error),
        "rank": str(rank),
        "ranks": str(ranks),
        "replay": replay,
    }
    try:
        tensors = {name: _elements(t) for name, t in inputs.items() if t is not None}
        tensors |= {_NAMES[n]: _elements(t) for n, t in _weights(operands, weights).items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        _safetensors.write(path, tensors, metadata)
        said = f"its tensors are in {path}"
        error.dump = path
    except (OSError, _NotReadable) as why:
        said = f"its tensors were not written to {path}: {why}"
    error.args = (f"{error} ({said})", *error.args[1:])


def _options(a: Activation) -> str:
    default = Activation()
    return "".join(
        f" --{name} {getattr(a, name):g}"
        for name in ("limit", "alpha", "beta")
        if getattr(a, name) != getattr(default, name)
    )


def _weights(operands: Sequence[Operand], weights: Sequence[Any]) -> dict[str, Any]:
    """The tensors of the library's fields by name; halves of odd rows stay in one another's place
    as far as they go."""
    fields: dict[str, Any] = {}
    at = 0
    for operand in operands:
        own = list(weights[at : at + operand.count])
        at += operand.count
        whole = _stack(own) if operand.per_expert else own[0]
        if len(operand.fields) == 1:
            fields[operand.fields[0]] = whole
            continue
        rows = whole.shape[operand.axis]
        rest = (slice(None),) * (-1 - operand.axis)
        fields[operand.fields[0]] = whole[(..., slice(None, (rows + 1) // 2)) + rest]
        fields[operand.fields[1]] = whole[(..., slice((rows + 1) // 2, None)) + rest]
    return fields


def _stack(tensors: list[Any]) -> Any:
    if isinstance(tensors[0], np.ndarray):
        return np.stack(tensors)
    import torch

    return torch.stack([t.detach() for t in tensors])


def _elements(tensor: Any) -> tuple[str, np.ndarray]:
    """The file's name of the type, and the elements on the host."""
    if isinstance(tensor, np.ndarray):
        name, array = tensor.dtype.name, tensor
    else:
        name, array = _torch_elements(tensor)
    if name not in _OF_BITS:
        raise _NotReadable(f"expected tensors of a type that safetensors has, found {name}")
    return _OF_BITS[name], array.view(np.int16) if name == "bfloat16" else array


def _torch_elements(tensor: Any) -> tuple[str, np.ndarray]:
    import torch

    tensor = tensor.detach()
    if tensor.is_cuda:
        # A kernel that does not end holds up whatever is asked of its GPU.
        if not torch.cuda.current_stream(tensor.device).query():
            raise _NotReadable("the GPU is still at work")
        tensor = tensor.cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    tensor = tensor.contiguous()
    return name, (tensor.view(torch.int16) if name == "bfloat16" else tensor).numpy()
