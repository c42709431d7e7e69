"""Hints of types: the package's own, the extension's stub, and what a caller's program sees."""

import ast
from pathlib import Path
import subprocess
import sys

import pytest

from openmok import _core

ROOT = Path(__file__).resolve().parents[2]

GOOD = """
import numpy as np
import openmok

x = np.ones((4, 16), np.float32)
group: openmok.Group = openmok.Group.alone(timeout=3.0)
out, rows = openmok.moe(x, np.zeros((4, 1)), x, x, x, group=group, tuning=openmok.Tuning())
shape = openmok.LayerShape(hidden=16, intermediate=8, num_experts=2, top_k=1)
workspace = openmok.Workspace(group, shape, openmok.Tuning(), 4)
schedule = openmok.Schedule(workspace, x)
saved = (schedule, openmok.Weights(gate=x), openmok.Inputs(x=x, topk_weights=x), openmok.Context())
grads = openmok.WeightGrads(mode=openmok.GradMode.Accumulate, shared_down=x)
openmok.shared_wgrad(workspace, saved, x, grads)
try:
    openmok.synchronize()
except openmok.MokTimeout as error:
    print(error.rank + error.peer, error.task.upper(), error.dump)
"""
BAD = {
    'openmok.moe(1, 2, 3, 4, 5, limit="seven")': "incompatible type",
    "openmok.Weights(gates=1)": "Unexpected keyword",
    "openmok.Workspace(1, 2, 3, 4)": "incompatible type",
    "openmok.LayerShape(hidden=16)": "Missing positional",
    "openmok.forward()": "Missing positional",
    "openmok.Group.alone().ranks": "no attribute",
}


def mypy(*files):
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *files],
        capture_output=True,
        text=True,
        env={"MYPYPATH": str(ROOT / "python"), "PATH": "/usr/bin:/bin"},
        cwd=ROOT,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def there_is_mypy():
    pytest.importorskip("mypy")


def test_the_package_is_strictly_typed(tmp_path):
    assert "Success: no issues found" in mypy(
        "--cache-dir", str(tmp_path), str(ROOT / "python/openmok")
    )


def test_what_a_caller_sees(tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    cache = ("--cache-dir", str(tmp_path / "cache"))
    assert "Success" in mypy(*cache, str(tmp_path / "good.py"))
    (tmp_path / "bad.py").write_text("import openmok\n" + "\n".join(BAD))
    errors = mypy(*cache, str(tmp_path / "bad.py")).splitlines()
    for line, expected in enumerate(BAD.values(), 2):
        assert any(f"bad.py:{line}: error" in e and expected in e for e in errors), errors


# ---- The stub against the extension itself ------------------------------------------------------
def signatures_of(function):
    """Names of the parameters of each overload, as the extension says them."""
    found = []
    for text, *_ in function.__nb_signature__:
        # "@staticmethod\ndef name(a: Type = \\0) -> Type", where \\0 stands for a default.
        definition = text.splitlines()[-1].replace("\\", "").rpartition(" -> ")[0]
        found.append(parameters_of(ast.parse(f"{definition}: ...").body[0]))
    return found


def parameters_of(definition):
    a = definition.args
    return [p.arg for p in (*a.posonlyargs, *a.args)]


def stub():
    return ast.parse((ROOT / "python/openmok/_core.pyi").read_text())


def definitions(body):
    named = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            named.setdefault(node.name, []).append(node)
    return named


def test_the_stub_has_the_extensions_names_and_parameters():
    checked = 0
    in_stub = {n.name: n for n in stub().body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    public = {n for n in vars(_core) if not n.startswith("__")}
    assert in_stub.keys() == public
    places = [(_core, definitions(stub().body))]
    for name, node in in_stub.items():
        if isinstance(node, ast.ClassDef) and name != "GradMode":
            owner = getattr(_core, name)
            own = {n for n in vars(owner) if not n.startswith("__")}
            declared = definitions(node.body)
            assert {n for n in declared if n != "__init__"} == own, name
            places.append((owner, declared))
    for owner, declared in places:
        for name, overloads in declared.items():
            function = getattr(owner, name)
            if not hasattr(function, "__nb_signature__"):
                continue  # a property
            expected = signatures_of(function)
            assert [parameters_of(o) for o in overloads] == expected, (owner, name)
            checked += 1
    assert checked > 25
