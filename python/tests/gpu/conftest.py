"""Tests that need a GPU: skipped, with the reason, where torch or the layer cannot use one."""

import pytest

import openmok


def why_not() -> str:
    if "cuda" not in openmok.built_backends():
        return "openmok was built without CUDA"
    if openmok.why_no_cuda():
        return openmok.why_no_cuda()
    torch = pytest.importorskip("torch")
    return "" if torch.cuda.is_available() else "torch cannot use the GPU"


@pytest.fixture(autouse=True)
def on_a_gpu():
    reason = why_not()
    if reason:
        pytest.skip(reason)
    yield
    openmok.synchronize()
