"""Files of parameters: `.npz`, written in one piece and read without pickle.

A file that is being written has another name until it is complete, so a crash leaves
either the old file or the new one. Names of arrays are `param/NAME`, `state/NAME` and
`optimizer/MOMENT/NAME`; `meta` is JSON.
"""

from __future__ import annotations

import json
import os
import secrets
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import NDArray

from tgdsl.errors import ParameterError

FORMAT: Final = 1
Arrays = Mapping[str, NDArray[np.float32]]


@attrs.frozen
class Checkpoint:
    """What a file holds.

    Attributes:
        params: Every parameter by name.
        state: Every persistent tensor of modules by name.
        moments: Per moment of the optimizer, its array for each trainable parameter.
        meta: Step counter, seed, learning rate; empty where no training was saved.
    """

    params: Arrays
    state: Arrays = attrs.field(factory=dict)
    moments: Mapping[str, Arrays] = attrs.field(factory=dict)
    meta: Mapping[str, Any] = attrs.field(factory=dict)


def save(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Write a file; an existing one is replaced only when the new one is complete."""
    arrays: dict[str, NDArray[Any]] = {f"param/{n}": a for n, a in checkpoint.params.items()}
    arrays |= {f"state/{n}": a for n, a in checkpoint.state.items()}
    for moment, values in checkpoint.moments.items():
        arrays |= {f"optimizer/{moment}/{n}": a for n, a in values.items()}
    arrays["meta"] = np.array(json.dumps({"format": FORMAT, **checkpoint.meta}))
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a file that `save` wrote, or any `.npz` whose arrays are parameters by name."""
    try:
        # A ZipFile first: NumPy would also open a single array, which has no names.
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise ParameterError(f"{os.fspath(path)}: not a .npz file of plain arrays ({error})") from error
    if "meta" not in arrays:
        return Checkpoint(arrays)
    meta = _meta(path, str(arrays.pop("meta")))
    moments: dict[str, dict[str, NDArray[np.float32]]] = {}
    parts: dict[str, dict[str, NDArray[np.float32]]] = {"param": {}, "state": {}}
    for name, array in arrays.items():
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            moment, _, rest = rest.partition("/")
            moments.setdefault(moment, {})[rest] = array
        elif kind in parts:
            parts[kind][rest] = array
        else:
            raise ParameterError(f"{os.fspath(path)}: unknown array {name!r}")
    return Checkpoint(parts["param"], parts["state"], moments, meta)


def _meta(path: str | os.PathLike[str], text: str) -> dict[str, Any]:
    try:
        meta = json.loads(text)
    except json.JSONDecodeError as error:
        raise ParameterError(f"{os.fspath(path)}: unreadable meta ({error})") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ParameterError(f"{os.fspath(path)}: not a file of this version of tgdsl")
    return {k: v for k, v in meta.items() if k != "format"}
