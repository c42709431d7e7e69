"""Calls are enqueued, not waited for."""

import pytest

torch = pytest.importorskip("torch")

from gpu_cases import arguments, d_out_of, without_grads
import openmok


def test_a_training_step_returns_while_the_gpu_is_busy():
    made = arguments(128)
    d_out = d_out_of(made)
    openmok.moe(**without_grads(made))[0].backward(d_out)  # makes the workspace
    without_grads(made)
    torch.cuda.synchronize()
    before = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)  # clocks: about a second
    before.record()
    out, rows = openmok.moe(**made)
    out.backward(d_out)
    assert not before.query(), "the call waited for the stream"
    torch.cuda.synchronize()
    assert out.isfinite().all() and int(rows.sum()) == int((made["topk_ids"] >= 0).sum())
