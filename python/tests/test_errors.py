"""What a call cannot take is refused in one sentence, and says where."""

from dataclasses import replace
import pickle
import subprocess
import sys

import numpy as np
import pytest

import cases
import openmok


def arguments(**changes):
    x, ids, router = cases.inputs(10)
    return {"x": x, "topk_ids": ids, "topk_weights": router, **cases.weights(), **changes}


def changed(name, change):
    made = arguments()
    return arguments(**{name: change(made[name])})


@pytest.mark.parametrize(
    "made, sentence",
    [
        (changed("x", lambda x: x[0]), r"x: expected 2 dimensions, found shape \[64\]"),
        (changed("x", lambda x: x.astype(np.float64)), r"x: expected dtype .*, found float64"),
        (changed("x", lambda x: x[:, :56]), r"gate: expected shape \[6, 40, 56\]"),
        (changed("x", lambda x: x.astype(np.int32)), r"x: expected dtype BF16 or F32, found I32"),
        (changed("x", lambda x: np.asfortranarray(x)), r"x: expected the last dimension contig"),
        (changed("topk_ids", lambda ids: ids[:5]), r"topk_ids: expected shape \[10, K\]"),
        (changed("topk_ids", lambda ids: ids.astype(np.float32)), r"topk_ids: expected dtype I32"),
        (changed("topk_ids", lambda ids: ids + 6), r"rank 0.*token"),
        (changed("topk_weights", lambda w: w[:, :2]), r"topk_weights: expected shape \[10, 3\]"),
        (changed("gate_up", lambda w: w[:, :79]), r"gate_up: expected an even number of rows"),
        (changed("gate_up", lambda w: w[0]), r"gate_up: expected 3 dimensions, found 2"),
        (changed("gate_up", lambda w: w[:5]), r"gate: expected shape \[6, 40, 64\], found \[5"),
        (changed("down", lambda w: (w, w)), r"down: expected 2 dimensions, found 3"),
        (arguments(precision="fp8"), r"precision: expected 'bf16', .* or 'mxfp8', found 'fp8'"),
        (arguments(activation="relu"), r"activation: expected swiglu or gpt-oss"),
        (arguments(limit=-1.0), r"limit"),
        (arguments(shared=np.zeros(3)), r"shared: expected \(gate_up, down\)"),
        (arguments(shared_weights=np.ones(10, np.float32)), r"shared_weights: expected none"),
        (arguments(tuning=openmok.Tuning(minibatch_rows=100)), r"minibatch_rows"),
    ],
)
def test_refused(made, sentence):
    with pytest.raises(openmok.MokShapeError, match=sentence) as refused:
        openmok.moe(**made)
    assert isinstance(refused.value, ValueError)
    assert "\n" not in str(refused.value)


def test_what_is_no_tensor_is_a_type_error():
    with pytest.raises(TypeError, match="x: expected a torch tensor or a NumPy array, found list"):
        openmok.moe(**arguments(x=[1.0]))
    with pytest.raises(TypeError, match="topk_weights: expected a tensor"):
        openmok.moe(**arguments(topk_weights="no"))
    with pytest.raises(TypeError, match="no tensor of the name gates"):
        openmok.Weights(gates=np.zeros((1, 8, 8), np.float32))


def test_a_read_only_output_is_refused():
    made = arguments()
    out = np.empty_like(made["x"])
    out.flags.writeable = False
    shape = openmok.LayerShape(cases.H, cases.I, cases.E, cases.K)
    workspace = openmok.Workspace(openmok.Group.alone(), shape, openmok.Tuning(), 10)
    schedule = openmok.Schedule(workspace, made["topk_ids"])
    weights = openmok.Weights(**cases.library_names(made))
    inputs = openmok.Inputs(x=made["x"], topk_weights=made["topk_weights"])
    with pytest.raises(TypeError, match="out: expected a writable tensor"):
        openmok.forward(workspace, schedule, weights, inputs, out)


def test_a_layer_of_fp8_demands_filled_weights_of_its_own():
    made = arguments()
    shape = openmok.LayerShape(cases.H, cases.I, cases.E, cases.K, precision="mxfp8")
    alone, tuning = openmok.Group.alone(), openmok.Tuning()
    workspace = openmok.Workspace(alone, shape, tuning, 10)
    in_bf16 = openmok.Workspace(alone, replace(shape, precision="bf16"), tuning, 10)
    inputs = openmok.Inputs(x=made["x"], topk_weights=made["topk_weights"])
    tensors = cases.library_names(made)
    out = np.empty_like(made["x"])

    def forward(where=workspace, **more):
        schedule = openmok.Schedule(where, made["topk_ids"])
        openmok.forward(where, schedule, openmok.Weights(**tensors, **more), inputs, out)

    with pytest.raises(openmok.MokShapeError, match="expected FP8 weights with precision mxfp8"):
        forward()
    fp8 = openmok.Fp8Weights(workspace)
    with pytest.raises(openmok.MokShapeError, match="that quantize_weights has filled"):
        forward(fp8=fp8)
    openmok.quantize_weights(workspace, openmok.Weights(**tensors), fp8)
    forward(fp8=fp8)
    assert fp8.is_filled and np.isfinite(out).all()
    with pytest.raises(openmok.MokShapeError, match="expected none with precision bf16"):
        forward(in_bf16, fp8=fp8)
    with pytest.raises(openmok.MokShapeError, match="expected a workspace of precision fp8_block"):
        openmok.Fp8Weights(in_bf16)
    wider = openmok.Workspace(alone, replace(shape, intermediate=48), tuning, 10)
    with pytest.raises(
        openmok.MokShapeError,
        match="those of mxfp8, 6 experts, hidden 64, intermediate 48, found mxfp8, .* 40",
    ):
        forward(wider, fp8=fp8)
    fp8.invalidate()
    with pytest.raises(openmok.MokShapeError, match="since the last invalidate"):
        forward(fp8=fp8)
    with pytest.raises(openmok.MokShapeError, match="precision: expected bf16, fp8_block or mxfp8"):
        openmok.Workspace(alone, replace(shape, precision="fp8"), tuning, 10)


def test_groups_of_several_ranks_name_max_tokens():
    made = arguments(group=openmok.Group.in_process(2)[0])
    with pytest.raises(openmok.MokShapeError, match="tuning.max_tokens: expected the same"):
        openmok.moe(**made)


def test_a_device_that_cannot_be_used_is_an_error_with_its_reason():
    reason = openmok.why_no_cuda()
    if not reason:
        pytest.skip("this machine has a GPU that can be used")
    with pytest.raises(openmok.MokError) as refused:
        openmok.Group.cuda_virtual(1, 0)
    assert str(refused.value) == reason


def test_errors_survive_pickling():
    error = pickle.loads(pickle.dumps(openmok.MokTimeout("late", 2, 5)))
    assert (str(error), error.rank, error.peer, error.task) == ("late", 2, 5, "")


def test_a_wait_in_a_pass_that_expires_names_its_task():
    made = arguments()
    shape = openmok.LayerShape(cases.H, cases.I, cases.E, cases.K)
    workspace = openmok.Workspace(openmok.Group.alone(timeout=0.5), shape, openmok.Tuning(), 10)
    workspace._lose_arrivals_of(0)  # a DispatchX, for which a GateUp waits
    schedule = openmok.Schedule(workspace, made["topk_ids"])
    weights = openmok.Weights(**cases.library_names(made))
    inputs = openmok.Inputs(x=made["x"], topk_weights=made["topk_weights"])
    with pytest.raises(openmok.MokTimeout) as raised:
        openmok.forward(workspace, schedule, weights, inputs, np.empty_like(made["x"]))
    assert raised.value.task.startswith("GateUp of tile 0, part ")
    assert f"{raised.value.task} waited 0.5 s for x_ready[0]" in str(raised.value)
    assert pickle.loads(pickle.dumps(raised.value)).task == raised.value.task


def test_importing_imports_no_torch():
    code = "import sys, openmok; print('torch' in sys.modules, openmok.built_backends()[0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "cpu"]
