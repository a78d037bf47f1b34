"""The benchmarks run and print their tables; how long anything takes is not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compile as compiling
from benchmarks import fit, host, kernels, matmul, precision, steps
from benchmarks.__main__ import sections
from benchmarks.graphs import references
from benchmarks.kernel_cases import CASES, MATMUL
from benchmarks.report import Section, options, publish, replaced

QUICK = ("--graphs", "mlp_sin", "--seconds", "0", "--limit", "140000", "--no-peers")


def arguments(backend: str, *more: str) -> Any:
    return options("").parse_args(["--backend", backend, *QUICK, *more])


def check(section: Section, rows: int) -> None:
    assert len(section.lines) == len(section.rows) == rows
    assert all(len(line) == len(section.head) for line in section.lines)
    assert "nan" not in section.text
    assert not section.place.gpu
    assert section.heading.endswith("no GPU")


def test_all_of_them_print_their_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    markdown, numbers = tmp_path / "results.md", tmp_path / "results.json"
    args = arguments("numpy", "--write", str(markdown), "--json", str(numbers))
    publish(sections(args), args)
    text = markdown.read_text()
    printed = capsys.readouterr().out
    found = json.loads(numbers.read_text())
    assert [s["title"] for s in found] == ["Training steps", "Kernels", "Compile times"]
    for section in found:
        heading = f"## {section['title']}: {section['place']}\n"
        assert text.count(heading) == printed.count(heading) == 1
        assert section["rows"]
    assert {row["kernel"] for row in found[1]["rows"]} == {"copy", "matmul", *CASES}
    assert sum(found[2]["rows"][0]["cold"].values()) > 0


def test_the_others_print_their_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "BATCHES", 16)
    check(host.run(arguments("numpy")), 1)
    check(fit.run(arguments("numpy")), 1)


@pytest.mark.gpu
def test_they_run_on_an_adapter(engine: Any) -> None:
    if not engine.limits.software:
        pytest.skip("what follows expects a software adapter")
    args = arguments("wgpu", "--kernels", "softmax,attention,cross-entropy")
    check(steps.run(args), 1)
    check(kernels.run(args), 8)
    stages = compiling.stages(references()["mlp_sin"], "wgpu")
    assert all(stages[name] > 0 for name in compiling.STAGES)


def test_matrix_products_print_their_table() -> None:
    args = arguments("numpy")
    args.sizes = "8x4x2,1023x1023x1023"
    args.no_peers = True
    section = matmul.run(args)
    check(section, 3)  # the second size is beyond the limit
    assert {tuple(row["size"]) for row in section.rows} == {(8, 4, 2)}


@pytest.mark.parametrize("name", CASES)
def test_kernel_reads_its_operands_and_writes_its_results(name: str) -> None:
    case = CASES[name]
    for part in case.parts:
        flops, least = kernels.count(case.step(case.sizes[0], part), case.needed)
        assert flops >= case.elements(case.sizes[0])
        assert least >= 4 * case.elements(case.sizes[0])


def test_work_of_a_matrix_product_is_counted() -> None:
    step = MATMUL.step((8,), "forward")
    assert kernels.count(step, 1.0) == (2 * 8**3, 3 * 8 * 8 * 4)
    assert kernels.count(step, 0.5)[0] == 8**3


def test_section_replaces_the_one_of_its_name() -> None:
    text = "# Results\n\nIntro.\n\n## A: x\n\nold\n\n## B: x\n\nkept\n"
    assert replaced(text, "A: x", "new\n") == text.replace("old", "new")
    assert replaced(text, "B: x", "new\n") == text.replace("kept", "new")
    assert replaced(text, "A: y", "new\n") == f"{text}\n## A: y\n\nnew\n"


@pytest.mark.gpu
def test_precisions_are_compared(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    if not engine.limits.half:
        pytest.skip(f"NO shader-f16: {engine.description}")
    full, half = precision.main("--dim 32 --heads 2 --depth 1 --steps 3 --repeats 1".split())
    assert abs(half.loss - full.loss) < 0.02 * full.loss
    assert half.megabytes < full.megabytes
    assert "us/step" in capsys.readouterr().out
