"""What the benchmarks share: the place they ran on, their options, tables, sections of RESULTS.md.

A section is known by its title and its place, so a new run replaces what the last run on the
same adapter wrote. A place that is no GPU says so in its name.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.graphs import references
from benchmarks.kernel_cases import CASES


@attrs.frozen
class Place:
    """Where tgdsl runs.

    Attributes:
        name: For headings.
        about: The backend, the adapter, its driver.
        gpu: Whether it is one; a software adapter is not.
    """

    name: str
    about: str
    gpu: bool


def place_of(engine: Any) -> Place:
    """The place of an engine."""
    about = f"{engine.name}: {engine.description}"
    if engine.name == "numpy":
        return Place(f"NumPy on {cpu_name()}, no GPU", about, gpu=False)
    device = str(engine.device.info["device"])
    if engine.limits.software:
        return Place(f"{device}, a software adapter on {cpu_name()}, no GPU", about, gpu=False)
    return Place(device, about, gpu=True)


def cpu_name() -> str:
    """The processor's model, where the system tells it."""
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


@attrs.frozen
class Section:
    """The result of one benchmark on one place.

    Attributes:
        title: Which benchmark.
        place: Where.
        about: What was measured, how, and beside whom.
        head: The columns of the table.
        lines: Its rows.
        rows: The same as numbers, for other programs.
    """

    title: str
    place: Place
    about: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    rows: Sequence[dict[str, Any]]

    @property
    def heading(self) -> str:
        """What the section is known by."""
        return f"{self.title}: {self.place.name}"

    @property
    def text(self) -> str:
        """The section without its heading."""
        rows = [self.head, ["---"] * len(self.head), *self.lines]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows).replace(" --- ", "---")
        return f"{time.strftime('%Y-%m-%d')}. {self.place.about}. {self.about}.\n\n{table}\n"

    def plain(self) -> dict[str, Any]:
        """For `--json`."""
        about = {"place": self.place.name, "gpu": self.place.gpu, "about": f"{self.place.about}. {self.about}."}
        return {"title": self.title, "date": time.strftime("%Y-%m-%d"), **about, "rows": list(self.rows)}


def replaced(text: str, heading: str, body: str) -> str:
    """`text` with the section under `heading` replaced, or added at the end."""
    new = f"## {heading}\n\n{body}"
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    at = [i for i, part in enumerate(parts) if part.splitlines()[:1] == [f"## {heading}"]]
    if not at:
        return f"{text.rstrip()}\n\n{new}"
    kept = [part for i, part in enumerate(parts) if i not in at[1:]]
    kept[at[0]] = new + ("\n" if at[0] < len(kept) - 1 else "")
    return "".join(kept)


def progress(cells: Sequence[str]) -> None:
    """Show a row while the others are being measured."""
    print("|", " | ".join(cells), file=sys.stderr, flush=True)


def publish(sections: Iterable[Section], args: argparse.Namespace) -> None:
    """Print the sections as they come, and write them where the options say."""
    done: list[dict[str, Any]] = []
    for section in sections:
        print(f"## {section.heading}\n\n{section.text}", flush=True)
        done.append(section.plain())
        if args.write is not None:
            before = args.write.read_text(encoding="utf-8") if args.write.exists() else "# Results\n"
            args.write.write_text(replaced(before, section.heading, section.text), encoding="utf-8")
        if args.json is not None:
            args.json.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")


def options(doc: str | None) -> argparse.ArgumentParser:
    """The options that the benchmarks have in common."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="auto", choices=["auto", "wgpu", "numpy"])
    parser.add_argument("--graphs", default=",".join(references()), help="reference graphs, by name")
    parser.add_argument("--kernels", default=",".join(CASES), help="kernels of benchmarks.kernels, by name")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each measurement takes")
    parser.add_argument("--no-peers", action="store_true", help="tgdsl alone")
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which takes a while")
    parser.add_argument("--jax", action="store_true", help="also JAX, if it is installed")
    parser.add_argument("--limit", type=int, help="elements of the largest operand in benchmarks.kernels")
    parser.add_argument("--write", type=Path, help="put the table into this Markdown file")
    parser.add_argument("--json", type=Path, help="put the numbers into this file")
    return parser
