"""MOK_DUMP: a failing call's tensors, which `mok run` takes."""

import os
from pathlib import Path
import subprocess
import threading

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import cases
import openmok
from openmok import _core, _dump

PROGRAM = Path(_core.__file__).resolve().parents[2] / "src/mok"
NAMES = {"x": "hidden_states", "topk_ids": "topk_ids", "topk_weights": "topk_weights"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(_dump, "FOLDER", str(tmp_path / "dumps"))
    return tmp_path / "dumps"


def replayed(file, *options):
    """Status and sentence of `mok run`, and the file that it was asked to write."""
    if not PROGRAM.exists():
        pytest.skip(f"the program mok is not built: there is no {PROGRAM}")
    out = file.with_name("out.safetensors")
    done = subprocess.run(
        [PROGRAM, "run", file, "-o", out, "--backend", "cpu", *options],
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr.strip().removeprefix("mok: "), out


def arguments(bad_id=None, biases=False, shared=False):
    x, ids, router = cases.inputs(10)
    if bad_id is not None:
        ids[7, 1] = bad_id
    made = {"x": x, "topk_ids": ids, "topk_weights": router}
    return made | cases.weights(biases=biases, shared=shared)


def failure_of(made, error=openmok.MokShapeError, **options):
    with pytest.raises(error) as raised:
        openmok.moe(**made, **options)
    return raised.value


@pytest.mark.parametrize("more", [{}, {"biases": True}, {"shared": True}])
def test_a_bad_id_is_found_again_in_the_file(folder, more):
    made = arguments(bad_id=cases.E + 3, **more)
    error = failure_of(made)
    (file,) = folder.iterdir()
    sentence = str(error).removesuffix(f" (its tensors are in {file})")
    assert sentence != str(error) and error.dump == file
    held = load_file(file)
    for name, in_file in NAMES.items():
        assert np.array_equal(held[in_file], made[name])
    named = cases.library_names(made)
    for name in ("gate", "up", "down"):
        assert np.array_equal(held[f"{name}_proj"], named[name])
    assert held.keys() - NAMES.values() == {_dump._NAMES[name] for name in named}
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
    assert metadata["error"] == sentence and metadata["call"] == "forward"
    status, found, _ = replayed(file)
    assert (status, found) == (2, sentence)


def test_ranks_are_joined_to_one_call(folder, tmp_path):
    whole = arguments(bad_id=cases.E + 3)
    ends, errors = [0, 6, 10], [None, None]
    groups = openmok.Group.in_process(2)

    def rank(r):
        tokens, experts = slice(*ends[r : r + 2]), slice(3 * r, 3 * r + 3)
        part = {
            name: value[experts if name in ("gate_up", "down") else tokens].copy()
            for name, value in whole.items()
        }
        errors[r] = failure_of(part, group=groups[r], tuning=openmok.Tuning(max_tokens=8))

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = sorted(folder.iterdir(), reverse=True)
    assert len(files) == 2
    openmok.join_dumps(files, tmp_path / "joined.safetensors")
    held = load_file(tmp_path / "joined.safetensors")
    assert held["tokens_per_rank"].tolist() == [6, 4]
    for name, in_file in NAMES.items():
        assert np.array_equal(held[in_file], whole[name])
    status, sentence, _ = replayed(tmp_path / "joined.safetensors")
    assert status == 2 and str(errors[0]).startswith(f"{sentence} (its tensors are in ")
    with pytest.raises(openmok.MokShapeError, match=r"one of each of 2 ranks, found ranks \[1\]"):
        openmok.join_dumps([errors[1].dump], tmp_path / "half")


def test_a_timeout_keeps_its_call(folder):
    groups = openmok.Group.in_process(2)
    groups[1].abandon("it was switched off")
    made = arguments()
    part = made | {name: made[name][:3] for name in ("gate_up", "down")}
    tuning = openmok.Tuning(max_tokens=16)
    error = failure_of(part, openmok.MokTimeout, group=groups[0], tuning=tuning)
    (file,) = folder.iterdir()
    assert str(error).endswith(f"(its tensors are in {file})") and error.peer == 1
    assert np.array_equal(load_file(file)["gate_proj"], part["gate_up"][:, : cases.I])


def test_a_replay_knows_the_activation(folder):
    made = arguments(bad_id=-2)
    failure_of(made, activation="gpt-oss")
    (file,) = folder.iterdir()
    with safe_open(file, "np") as opened:
        replay = opened.metadata()["replay"]
    assert replay == f"mok run {file} -o OUT.safetensors --limit 7 --alpha 1.702 --beta 1"


def test_a_replay_knows_the_precision(folder):
    failure_of(arguments(bad_id=-2), precision="mxfp8")
    (file,) = folder.iterdir()
    with safe_open(file, "np") as opened:
        replay = opened.metadata()["replay"]
    assert replay == f"mok run {file} -o OUT.safetensors --precision mxfp8"


def test_a_call_that_succeeds_leaves_nothing(folder):
    openmok.moe(**arguments())
    assert not folder.exists()


def test_without_the_variable_nothing_is_written():
    error = failure_of(arguments(bad_id=99))
    assert error.dump is None and "its tensors" not in str(error)


def test_a_file_that_cannot_be_written_is_said_and_none_is_left(folder, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    error = failure_of(arguments(bad_id=99))
    assert "(its tensors were not written to " in str(error)
    assert str(error).endswith("No space left on device)") and error.dump is None
    assert list(folder.iterdir()) == []


def test_the_variable_is_read_when_openmok_is_imported(tmp_path):
    program = """
import numpy as np, openmok
ones = lambda *shape: np.ones(shape, np.float32)
try:
    openmok.moe(ones(1, 8), np.array([[5]]), ones(1, 1), ones(2, 16, 8), ones(2, 8, 8))
except openmok.MokShapeError as error:
    print(error.dump)
"""
    import sys

    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"MOK_DUMP": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [done.stdout.strip()] == [str(file) for file in tmp_path.iterdir()]
