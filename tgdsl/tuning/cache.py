"""Tilings found before, on disk: one JSON file per adapter, driver and version.

What is in a file is only ever a choice among candidates, so a wrong one costs time and never a
result. A file that cannot be read, or that belongs to something else, is ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import attrs

from tgdsl.codegen import Tiling

log = logging.getLogger("tgdsl")

FORMAT: Final = "tgdsl tilings 1"


def directory() -> Path:
    """Where files lie: TGDSL_CACHE_DIR, else a folder in XDG_CACHE_HOME, else one in `~/.cache`."""
    if own := os.environ.get("TGDSL_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tgdsl"


@attrs.frozen
class Held:
    """What a file holds.

    Attributes:
        tilings: The fastest tiling of each problem.
        steps: By a digest of two programs of one step, whether those tilings made it no slower.
    """

    tilings: Mapping[str, Tiling] = attrs.field(factory=dict)
    steps: Mapping[str, bool] = attrs.field(factory=dict)


class Cache:
    """The tilings found on one adapter.

    Attributes:
        path: The file.
    """

    def __init__(self, identity: Mapping[str, str]) -> None:
        """Name the file; `identity` is what measurements depend on, this package's version aside."""
        self.identity = {**identity, "tgdsl": _version()}
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:16]
        self.path = directory() / f"tilings-{digest}.json"

    def read(self) -> Held:
        """What was found before; nothing if there is no file or it is not one of ours."""
        try:
            return _parsed(json.loads(self.path.read_text("utf-8")), self.identity)
        except FileNotFoundError:
            return Held()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning("the tilings in %s are ignored: %s", self.path, error)
            return Held()

    def add(self, found: Held) -> None:
        """Write this beside what others have written since; the file is always whole."""
        held = self.read()
        tilings = {key: attrs.astuple(tiling) for key, tiling in sorted({**held.tilings, **found.tilings}.items())}
        content = {"tilings": tilings, "steps": {**held.steps, **found.steps}}
        text = json.dumps({"format": FORMAT, "adapter": self.identity, **content}, indent=1)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self.path, text)
        except OSError as error:
            log.warning("the tilings could not be kept in %s: %s", self.path, error)


def _parsed(held: Any, identity: Mapping[str, str]) -> Held:
    if held["format"] != FORMAT or held["adapter"] != identity:
        raise ValueError("they were written by another version or for another adapter")
    for numbers in held["tilings"].values():
        if len(numbers) != len(attrs.fields(Tiling)) or not all(type(n) is int for n in numbers):
            raise ValueError(f"{numbers} is no tiling")
    if not all(isinstance(pays, bool) for pays in held["steps"].values()):
        raise ValueError("a step has no verdict")
    return Held({key: Tiling(*numbers) for key, numbers in held["tilings"].items()}, held["steps"])


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _version() -> str:
    try:
        return metadata.version("tgdsl")
    except metadata.PackageNotFoundError:
        return "source"
