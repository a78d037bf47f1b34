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

    def read(self) -> dict[str, Tiling]:
        """The tiling of each problem; nothing if there is no file or it is not one of ours."""
        try:
            return _parsed(json.loads(self.path.read_text("utf-8")), self.identity)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning("the tilings in %s are ignored: %s", self.path, error)
            return {}

    def add(self, found: Mapping[str, Tiling]) -> None:
        """Write these beside what others have written since; the file is always whole."""
        held = {**self.read(), **found}
        tilings = {key: list(attrs.astuple(tiling)) for key, tiling in sorted(held.items())}
        text = json.dumps({"format": FORMAT, "adapter": self.identity, "tilings": tilings}, indent=1)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self.path, text)
        except OSError as error:
            log.warning("the tilings could not be kept in %s: %s", self.path, error)


def _parsed(held: Any, identity: Mapping[str, str]) -> dict[str, Tiling]:
    if held["format"] != FORMAT or held["adapter"] != identity:
        raise ValueError("they were written by another version or for another adapter")
    for numbers in held["tilings"].values():
        if len(numbers) != len(attrs.fields(Tiling)) or not all(type(n) is int for n in numbers):
            raise ValueError(f"{numbers} is no tiling")
    return {str(key): Tiling(*numbers) for key, numbers in held["tilings"].items()}


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
