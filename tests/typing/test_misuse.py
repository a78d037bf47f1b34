"""Each mistake of misuse.py is caught by each checker that is said to catch it, and only those."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MISUSE = (HERE / "misuse.py").read_text()
MARK = re.compile(r"# E (?P<name>\S+)(?: \((?P<only>pyright|neither)\))?$")
MISTAKES = {n: m for n, line in enumerate(MISUSE.splitlines(), 1) if (m := MARK.search(line))}
# What strict pyright says of the style of these files, not of their types.
STYLE = {
    "reportUnusedExpression",
    "reportUnusedImport",
    "reportUnusedFunction",
    "reportUnusedClass",
    "reportUnusedVariable",
    "reportUnusedCoroutine",
}
Found = dict[str, dict[int, str]]
"""Per file, the first message per line."""


def expected(checker: str) -> dict[str, int]:
    """The lines of the mistakes that a checker must report, by name."""
    return {m["name"]: line for line, m in MISTAKES.items() if m["only"] in (None, checker)}


def copies(folder: str) -> list[str]:
    """The files to check, where no configuration of the project applies."""
    names = ("misuse.py", "models.py", "positive.py")
    return [str(shutil.copy(HERE / name, folder)) for name in names]


@cache
def mypy() -> Found:
    """One run of mypy over all files."""
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary",
             "--follow-imports=silent", f"--cache-dir={ROOT}/.mypy_cache/typing", *copies(folder)],
            capture_output=True, text=True, cwd=ROOT, check=False,
            env={**os.environ, "MYPYPATH": str(ROOT)},
        )  # fmt: skip
    found: Found = {}
    for line in done.stdout.splitlines():
        if m := re.match(r".*?(\w+\.py):(\d+): error: (.*)", line):
            found.setdefault(m[1], {}).setdefault(int(m[2]), m[3])
    assert found, done.stdout + done.stderr
    return found


@cache
def pyright() -> Found:
    """One run of strict pyright over all files; skips where it cannot run, but fails in CI."""
    with TemporaryDirectory() as folder:
        names = [Path(path).name for path in copies(folder)]
        settings = {"typeCheckingMode": "strict", "include": names, "extraPaths": [str(ROOT)]}
        (Path(folder) / "pyrightconfig.json").write_text(json.dumps(settings))
        done = subprocess.run(
            [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable,
             "--project", folder],
            capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    try:
        report = json.loads(done.stdout)["generalDiagnostics"]
    except (json.JSONDecodeError, KeyError):
        if os.environ.get("CI"):
            raise AssertionError(f"pyright did not run: {done.stdout}{done.stderr}") from None
        pytest.skip(f"PYRIGHT DID NOT RUN: {done.stderr.strip()[-300:]}")
    found: Found = {}
    for d in report:
        if d["severity"] == "error" and d.get("rule") not in STYLE:
            lines = found.setdefault(Path(d["file"]).name, {})
            lines.setdefault(d["range"]["start"]["line"] + 1, d["message"])
    return found


CHECKERS = {"mypy": mypy, "pyright": pyright}
CASES = [(checker, name) for checker in CHECKERS for name in expected(checker)]


@pytest.mark.parametrize(("checker", "mistake"), CASES)
def test_mistake_is_caught(checker: str, mistake: str) -> None:
    assert expected(checker)[mistake] in CHECKERS[checker]()["misuse.py"]


@pytest.mark.parametrize("checker", CHECKERS)
def test_nothing_else_is_reported(checker: str) -> None:
    found = CHECKERS[checker]()
    assert {n: m for n, m in found["misuse.py"].items() if n not in MISTAKES} == {}
    assert found.get("models.py", {}) == found.get("positive.py", {}) == {}


def test_the_list_does_not_shrink() -> None:
    assert len(expected("mypy")) >= 66
    assert len(expected("pyright")) >= 68
