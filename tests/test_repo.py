"""What holds for the repository as a whole: sizes, docstrings, the README's program, import contracts."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "tgdsl").rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]
RUNTIME = [path for path in MODULES if path.parent.name == "runtime"]
MOST_LINES = 400
COMPILER = [
    *("ir", "ops", "frontend", "autograd", "nn", "optim", "passes"),
    *("schedule", "plan", "codegen", "reference", "pipeline", "tuning", "session"),
]


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository, with the package importable."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_module_says_what_it_holds(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "no docstring"


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_module_is_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{lines} lines, more than {MOST_LINES}: split it by what its parts are about"


@pytest.mark.parametrize("folder", ["tgdsl", "examples", "benchmarks", "docs"])
def test_nothing_is_left_to_do(folder: str) -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md"}
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert not found


def test_every_folder_of_the_package_is_a_package() -> None:
    folders = {path.parent for path in MODULES}
    assert not [str(f.relative_to(ROOT)) for f in sorted(folders) if not (f / "__init__.py").exists()]
    assert (ROOT / "tgdsl" / "py.typed").exists(), "without py.typed, users' checkers ignore the annotations"


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a Markdown text: language and content."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def losses(text: str) -> dict[int, float]:
    """The losses that the README's program prints, by step."""
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss (\S+)$", text, re.MULTILINE)}


def test_readme_program_runs_and_prints_what_is_shown(tmp_path: Path) -> None:
    found = blocks((ROOT / "README.md").read_text())
    place = next(i for i, (language, _) in enumerate(found) if language == "python")
    program, shown = found[place][1], losses(found[place + 1][1])
    file = tmp_path / "readme.py"
    file.write_text(program)
    done = run(sys.executable, "-W", "error", str(file), TGDSL_BACKEND="numpy")
    assert done.returncode == 0, done.stderr
    printed = losses(done.stdout)
    assert printed.keys() == shown.keys()
    assert printed[100] == pytest.approx(shown[100], rel=0.05)
    assert printed[500] < 1e-4


@pytest.mark.parametrize("path", RUNTIME, ids=lambda path: path.stem)
def test_runtime_module_names_no_compiler_module(path: Path) -> None:
    named: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level < 2:
            start = "tgdsl.runtime." if node.level else ""
            named |= {f"{start}{node.module or ''}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            named |= {f"tgdsl.{node.module or alias.name}." for alias in node.names}
        elif isinstance(node, ast.Import):
            named |= {f"{alias.name}." for alias in node.names}
    assert not [name for name in sorted(named) if name.startswith(tuple(f"tgdsl.{part}." for part in COMPILER))]


def test_import_loads_neither_the_gpu_nor_test_tools() -> None:
    heavy = ["wgpu", "hypothesis", "pytest", "matplotlib", "sklearn", "rich", "safetensors"]
    script = f"import sys, tgdsl; print([name for name in {heavy!r} if name in sys.modules])"
    done = run(sys.executable, "-c", script)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_import_contracts_hold() -> None:
    beside = Path(sys.executable).parent / "lint-imports"
    command = str(beside) if beside.exists() else shutil.which("lint-imports")
    if command is None:
        pytest.skip("import-linter is not installed")
    done = run(command, "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr
