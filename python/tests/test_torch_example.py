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


def trained(*options, ranks=1, status=0, program=PROGRAM):
    """What a run prints, or says when it ends with another status."""
    launch = [sys.executable]
    if ranks > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*launch, program, *SMALL.split(), *TEXT, *options],
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


def test_experts_in_fp8_learn_alike():
    fp8 = losses_of(trained("--precision", "mxfp8"))
    assert_alike(fp8, whole_run("mok"), 0.05)
    assert fp8 != whole_run("mok")


# ---- compare_moe_lm.py --------------------------------------------------------------------------
def test_a_comparison_of_both_backends(tmp_path):
    program = str(ROOT / "examples/compare_moe_lm.py")
    printed = trained("--out", str(tmp_path), "--seeds", "2", program=program)
    found = json.loads((tmp_path / "compare.json").read_text())
    runs = {(r["backend"], r["seed"]): r for r in found["runs"]}
    assert list(runs) == [("torch", 1), ("mok", 1), ("torch", 2), ("mok", 2)]
    for backend in ("torch", "mok"):
        losses = {step: round(loss, 4) for step, loss in runs[backend, 1]["losses"]}
        assert losses == whole_run(backend)  # those of train_moe_lm.py
    for r in runs.values():
        assert 0 < r["layers_ms"] < r["step_ms"] and len(r["times_ms"]) == 3
        assert r["tokens_per_second"] == pytest.approx(4 * 64 * 1e3 / r["step_ms"])
        assert f"{r['backend']}, seed {r['seed']}" in printed
    assert found["summary"]["lines"] == 3
    picture = xml.parse(tmp_path / "losses.svg").getroot()
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    colours = [line.get("stroke") for line in lines]
    assert colours[0] == colours[2] != colours[1] == colours[3]


def test_what_a_comparison_says_of_numbers_that_are_known(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from moe_lm.comparison import summary_of

    def run(backend, seed, step, layers, *losses):
        return {
            "backend": backend,
            "seed": seed,
            "step_ms": step,
            "layers_ms": layers,
            "tokens_per_second": 1.0,
            "losses": list(enumerate(losses)),
        }

    lines, found = summary_of(
        [
            run("torch", 1, 10.0, 5.0, 3.0, 2.0),
            run("mok", 1, 8.0, 2.5, 3.1, 2.0),
            run("torch", 2, 10.0, 5.0, 3.2, 2.4),
            run("mok", 2, 8.0, 2.5, 3.9, 2.1),
        ]
    )
    # The layers take half of the time: a step of 7.5 instead of 10.
    assert found["layer_gain"] == 2 and found["step_gain_predicted"] == pytest.approx(10 / 7.5)
    assert found["step_gain"] == 1.25 and found["part_of_prediction"] == pytest.approx(7.5 / 8)
    # Means: 3.5 beside 3.1, 2.05 beside 2.2; torch's runs lie 0.2 and 0.4 apart.
    assert found["gaps_of_means"] == pytest.approx([0.4, 0.15])
    assert found["gaps_of_pairs"] == pytest.approx([0.7, 0.3])
    assert found["spreads_of_torch"] == pytest.approx([0.2, 0.4])
    assert found["lines_within_spread"] == 1 and "93.8% of it" in lines[5]


def test_what_cannot_be_run_is_said(tmp_path):
    (tmp_path / "text").write_bytes(b"short")
    said = trained("--text", str(tmp_path / "text"), status=1)
    assert said == "--text: expected more than 65 bytes, found 5\n"
    said = trained("--backend", "torch", "--precision", "mxfp8", status=1)
    assert said == "--precision: expected bf16 with --backend torch, found mxfp8\n"
    said = trained("--resume", "--out", str(tmp_path), status=1)
    assert said == f"--resume: expected a checkpoint step-N in {tmp_path}, found none\n"
