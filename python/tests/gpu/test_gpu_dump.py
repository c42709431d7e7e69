"""MOK_DUMP on a GPU: what goes wrong on the device is raised by its own call, with its tensors."""

import pytest

torch = pytest.importorskip("torch")

from gpu_cases import E, arguments, d_out_of
import openmok
from openmok import _dump, _safetensors


def test_a_bad_id_is_known_in_its_own_call(tmp_path, monkeypatch):
    monkeypatch.setattr(_dump, "FOLDER", str(tmp_path))
    good = arguments(130)
    openmok.moe(**good)[0].backward(d_out_of(good))
    assert list(tmp_path.iterdir()) == []
    bad = arguments(130)
    bad["topk_ids"] = bad["topk_ids"].clone()
    bad["topk_ids"][77, 2] = E + 5
    with pytest.raises(openmok.MokShapeError, match="token 77") as raised:
        openmok.moe(**bad)
    (file,) = tmp_path.iterdir()
    assert str(raised.value).endswith(f"(its tensors are in {file})")
    tensors, metadata = _safetensors.read(file)
    dtype, shape, held = tensors["topk_ids"]
    assert (dtype, shape) == ("I64", [130, bad["topk_ids"].shape[1]])
    assert held == bad["topk_ids"].cpu().numpy().tobytes()
    assert str(raised.value).startswith(metadata["error"])
    openmok.moe(**good)  # the workspace goes on
