"""The package away from its checkout: the user's line must survive, whatever the folder is called."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import tgdsl

PROGRAM = """
from tgdsl import F32, Adam, Linear, Tensor, compile_module, f32, forward, inputs, module
from tgdsl.ops import mean, square

@module
class Net:
    layer: Linear = Linear(3, 1)

@inputs
class Batch:
    x: F32 = f32("B", 4)

@forward(inputs=Batch)
def loss(m: Net, b: Batch) -> Tensor:
    return mean(square(m.layer(b.x)))

compile_module(Net(), loss, optimizer=Adam(1e-3), dims={"B": 2}, backend="numpy")
"""


def test_error_names_the_users_line_from_an_installed_copy(tmp_path: Path) -> None:
    site = tmp_path / "elsewhere"
    shutil.copytree(Path(tgdsl.__file__).parent, site / "tgdsl", ignore=shutil.ignore_patterns("__pycache__"))
    program = tmp_path / "train_net.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(site)},
        check=False,
    )
    assert done.returncode == 1
    assert "matmul: inner dims differ (4 != 3)" in done.stderr
    assert f'File "{program}", line 15, in loss' in done.stderr
    assert "(input x)" in done.stderr
    assert "(parameter layer.w)" in done.stderr
    assert "m.layer(b.x)" in done.stderr


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(tgdsl.__file__).parent / "py.typed").exists()
