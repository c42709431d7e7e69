"""examples/train_moe_lm.py: both backends train the same model; checkpoints serve any number of
ranks."""

import functools
import json
from pathlib import Path
import re
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(ROOT / "examples/train_moe_lm.py")
SMALL = "--steps 12 --report 4 --hidden 64 --heads 4 --intermediate 48 --experts 8 --top-k 2"
SMALL += " --layers 2 --batch 4 --length 64 --warm-up 2 --lr 3e-3 --device cpu"
TEXT = ("--text", str(ROOT / "docs/design.md"))


def trained(*options, ranks=1, status=0):
    """What a run prints, or says when it ends with another status."""
    launch = [sys.executable]
    if ranks > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*launch, PROGRAM, *SMALL.split(), *TEXT, *options],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def losses_of(printed):
    lines = re.findall(
        r"^step (\d+)/12  loss ([\d.]+)  \d+ tokens/s  layers [\d.]+% of [\d.]+ ms  \d+:\d\d left$",
        printed,
        re.M,
    )
    return {int(step): float(loss) for step, loss in lines}


@functools.cache
def whole_run(backend):
    """The losses of one rank without a break."""
    return losses_of(trained("--backend", backend))


def assert_alike(found, expected, difference):
    assert found.keys() == expected.keys()
    assert all(abs(found[step] - expected[step]) < difference for step in found), (found, expected)


def test_both_backends_learn_alike():
    mok, plain = whole_run("mok"), whole_run("torch")
    assert list(mok) == [4, 8, 12]
    assert_alike(mok, plain, 0.05)
    assert mok[12] < mok[4] - 0.5


@pytest.mark.parametrize("first, second", [(1, 2), (2, 1)])
def test_a_checkpoint_of_one_number_of_ranks_is_gone_on_from_by_another(tmp_path, first, second):
    """The losses are those of a run without a break; the files hold whole experts."""
    backend, whole = ("--backend", "torch"), whole_run("torch")
    out = "--out", str(tmp_path)
    half = losses_of(trained(*backend, *out, "--steps", "8", ranks=first).replace("/8 ", "/12 "))
    assert_alike(half, {step: whole[step] for step in (4, 8)}, 0.02)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["loss.svg", "losses.json", "step-8"]
    printed = trained(*backend, *out, "--resume", ranks=second)
    assert f"goes on from {tmp_path / 'step-8'}" in printed
    assert_alike(losses_of(printed), {12: whole[12]}, 0.02)
    assert [step for step, _ in json.loads((tmp_path / "losses.json").read_text())] == [4, 8, 12]


def test_a_run_that_goes_on_has_the_losses_of_one_without_a_break(tmp_path):
    whole, out = whole_run("mok"), ("--out", str(tmp_path))
    trained(*out, "--steps", "8", "--save", "4")
    assert {p.name for p in tmp_path.glob("step-*")} == {"step-4", "step-8"}
    (tmp_path / "others.json").write_text("[[4, 5.0], [8, 4.0]]")
    assert losses_of(
        trained(*out, "--resume", "--beside", str(tmp_path / "others.json"))
    ) == {12: whole[12]}
    in_file = json.loads((tmp_path / "losses.json").read_text())
    assert [(step, round(loss, 4)) for step, loss in in_file] == list(whole.items())
    picture = xml.parse(tmp_path / "loss.svg").getroot()
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.get("points").split()) for line in lines] == [3, 2]
    said = trained(*out, "--resume", "--experts", "16", status=1)
    assert said == f"{tmp_path / 'step-12'}: expected a model of --experts 16, found 8\n"


def test_what_cannot_be_run_is_said(tmp_path):
    (tmp_path / "text").write_bytes(b"short")
    said = trained("--text", str(tmp_path / "text"), status=1)
    assert said == "--text: expected more than 65 bytes, found 5\n"
    said = trained("--resume", "--out", str(tmp_path), status=1)
    assert said == f"--resume: expected a checkpoint step-N in {tmp_path}, found none\n"
