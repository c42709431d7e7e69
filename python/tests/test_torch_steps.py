"""What a training step leaves behind, and what it does besides the layer's own work."""

import ctypes
import gc
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import openmok
from test_torch import arguments, d_out_of, leaves

ONLY_ALLOCATE = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"}
BY_AUTOGRAD = {"aten::detach"}  # as it keeps the gradient of a leaf


class Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                     "uordblks", "fordblks", "keepcost")
    ]


def bytes_in_use():
    """Of the C library's allocator, which torch's takes its memory from too."""
    gc.collect()
    of_library = ctypes.CDLL(None)
    of_library.mallinfo2.restype = Mallinfo
    found = of_library.mallinfo2()
    return found.uordblks + found.hblkhd


def thousand_steps():
    """Bytes and objects of Python, the least of ten looks each, before and after 1,000 steps of
    changing sizes and routings."""
    made = arguments(40, shared=True)
    made["gate_up"].main_grad = torch.zeros(made["gate_up"].shape)
    inputs = {n: made[n] for n in ("x", "topk_ids", "topk_weights", "shared_weights")}
    found = []
    for step in range(1600):
        own = {n: t.detach()[: step % 41].roll(step, 0).requires_grad_(t.requires_grad)
               for n, t in inputs.items()}
        out, _ = openmok.moe(**(made | own))
        out.backward(d_out_of(own))
        for leaf in leaves(made | own).values():
            leaf.grad = None
        del out, own
        if step % 50 == 49:
            found.append((bytes_in_use(), sys.getallocatedblocks()))
    return [tuple(map(min, zip(*found[at : at + 10]))) for at in (2, 22)]


def test_a_thousand_steps_leave_nothing_behind():
    """In a process of its own, whose threads and memory nothing else has touched."""
    program = "from test_torch_steps import thousand_steps; print(thousand_steps())"
    path = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (first_bytes, first_objects), (last_bytes, last_objects) = eval(done.stdout)
    # 100 bytes a step would be 100,000.
    assert last_bytes - first_bytes < 50_000
    assert last_objects - first_objects < 500


def operations(work):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work()
    return {e.key: e.count for e in profile.key_averages() if e.key.startswith("aten::")}


@pytest.mark.parametrize("into_main_grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_only_allocates(dtype, into_main_grad):
    """Nothing is copied, viewed or filled by torch: the rest is the extension's one call."""
    made = arguments(dtype=dtype, biases=True, shared=True)
    trained = leaves(made)
    d_out = d_out_of(made)
    if into_main_grad:
        for name in trained.keys() - {"x", "topk_weights", "shared_weights"}:
            trained[name].main_grad = torch.zeros(trained[name].shape)
    openmok.moe(**made)  # the very first call imports
    openmok.moe(**made)[0].backward(d_out)
    for leaf in trained.values():
        leaf.grad = None
    outputs = []
    forward = operations(lambda: outputs.append(openmok.moe(**made)[0]))
    assert forward.keys() <= ONLY_ALLOCATE
    backward = operations(lambda: outputs[0].backward(d_out))
    assert backward.keys() <= ONLY_ALLOCATE | BY_AUTOGRAD
    assert backward["aten::empty_like"] == len(trained)
    with torch.no_grad():
        assert operations(lambda: openmok.moe(**made)).keys() <= ONLY_ALLOCATE


@pytest.mark.parametrize("main_grad", [None, torch.float32, torch.float64, "some"])
@pytest.mark.parametrize("delayed", [False, True])
def test_what_is_saved_is_asked_for_once(main_grad, delayed):
    """By every way through a backward: a checkpoint refuses a second time, offloading would copy."""
    made, unpacked = arguments(), []
    for name in ("gate_up", "down") if main_grad != "some" else ("down",):
        if main_grad is not None:
            dtype = torch.float32 if main_grad == "some" else main_grad
            made[name].main_grad = torch.zeros(made[name].shape, dtype=dtype)
    packed = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t) or t, lambda t: unpacked.append(t) or t
    )
    queue = [] if delayed else None
    with hooks:
        out, _ = openmok.moe(**made, delayed_wgrads=queue)
    out.backward(d_out_of(made))
    for wgrad in queue or ():
        wgrad()
    assert len(unpacked) == len(packed) == 6
