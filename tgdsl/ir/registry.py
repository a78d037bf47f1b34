"""Functions of `tgdsl.ops` that tensor methods need but which are not ops themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_METHODS: dict[str, Callable[..., Any]] = {}


def provides(name: str) -> Callable[[F], F]:
    """Register a function as the implementation of a tensor method."""

    def register(fn: F) -> F:
        _METHODS[name] = fn
        return fn

    return register


def method(name: str) -> Callable[..., Any]:
    """The function registered under `name`."""
    return _METHODS[name]
