"""The examples in docstrings run, with the public names at hand."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import tgdsl
import tgdsl.frontend
import tgdsl.nn
from tests.frontend.models import MLP, loss

NAMES = {**vars(tgdsl), "np": np, "MLP": MLP, "loss": loss}
EXAMPLES = [
    test
    for package in (tgdsl.frontend, tgdsl.nn)
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    for test in doctest.DocTestFinder().find(importlib.import_module(info.name), extraglobs=NAMES)
    if test.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example(example: doctest.DocTest) -> None:
    output: list[str] = []
    # Annotations as strings, as in any file of a user.
    example.globs["annotations"] = __import__("__future__").annotations
    failed = doctest.DocTestRunner(verbose=False).run(example, out=output.append).failed
    assert not failed, "".join(output)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 7
