"""Files of parameters: what is refused, and that a failure leaves everything as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.session.models import batch
from tests.session.test_handles import equal, trained
from tgdsl import SGD, checkpoint
from tgdsl.errors import ParameterError


def test_a_file_is_replaced_only_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    held = checkpoint.Checkpoint({"w": np.ones(3, np.float32)}, meta={"step": 1})
    checkpoint.save(path, held)
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(path, held)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_plain_files_of_arrays_are_parameters(tmp_path: Path) -> None:
    train = trained("numpy")
    params = {n: a + 1 for n, a in train.download_params().items()}
    np.savez(tmp_path / "plain.npz", **params)
    train.load_params(tmp_path / "plain.npz", optimizer=False)
    assert equal(train.download_params(), params)
    with pytest.raises(ParameterError, match="the file holds no optimizer state\n  hint: load_params"):
        train.load_params(tmp_path / "plain.npz")


def test_files_never_run_code(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([print], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", a=np.array([print], dtype=object))
    np.save(tmp_path / "y.npy", np.zeros(3))
    for name in ("x.npy", "x.npz", "y.npy"):
        with pytest.raises(ParameterError, match=r"not a .npz file of plain arrays"):
            trained("numpy").load_params(tmp_path / name)


def test_a_file_that_is_not_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ParameterError, match=r"text.npz: not a .npz file"):
        trained("numpy").load_params(tmp_path / "text.npz")
    with pytest.raises(FileNotFoundError):
        trained("numpy").load_params(tmp_path / "none.npz")
    np.savez(tmp_path / "new.npz", meta=np.array('{"format": 99}'))
    with pytest.raises(ParameterError, match="not a file of this version of tgdsl"):
        trained("numpy").load_params(tmp_path / "new.npz")


def spoil(path: Path, **changes: Any) -> None:
    with np.load(path) as file:
        arrays = {n: file[n] for n in file.files}
    for name, value in changes.items():
        key = name.replace("__", "/")
        if value is None:
            del arrays[key]
        else:
            arrays[key] = value
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"param__l1.w": np.zeros((3, 4), np.float32)}, r"parameter 'l1.w': expected shape \[3, 16\], got \[3, 4\]"),
        ({"param__l1.w": None}, r"missing parameter: l1.w"),
        ({"param__l9.w": np.zeros(3, np.float32)}, r"unknown parameter 'l9.w'; the model has: l1.w"),
        ({"param__l1.b": np.zeros(16)}, r"parameter 'l1.b': expected an f32 array, got float64 array"),
        ({"optimizer__m__l1.w": None}, r"missing moment m of: l1.w"),
        ({"optimizer__u__l1.w": np.zeros(3, np.float32)}, r"the file holds moments \['m', 'u', 'v'\]"),
        ({"meta": np.array('{"format": 1, "optimizer": "adam", "step": 3}')}, r"training state is incomplete"),
        ({"other__x": np.zeros(1)}, r"unknown array 'other/x'"),
    ],
)
def test_a_file_that_does_not_fit_changes_nothing(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    path = tmp_path / "a.npz"
    train, other = trained("numpy"), trained("numpy")
    train.step(**batch(0))
    train.save_params(path)
    spoil(path, **changes)
    other.step(**batch(1))
    before = other.download_params()
    with pytest.raises(ParameterError, match=text):
        other.load_params(path)
    assert equal(other.download_params(), before)
    assert other.steps_done == 1
    train.reset()
    train.step(**batch(1))
    assert other.step(**batch(2)).loss == train.step(**batch(2)).loss


def test_the_optimizer_of_a_file_must_be_of_the_same_kind(tmp_path: Path) -> None:
    trained("numpy").save_params(tmp_path / "a.npz")
    train = trained("numpy", optimizer=SGD(0.1))
    with pytest.raises(ParameterError, match="saved with optimizer adam, not sgd"):
        train.load_params(tmp_path / "a.npz")
    train.load_params(tmp_path / "a.npz", optimizer=False)
