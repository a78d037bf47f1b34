"""Compiled variants of one forward, one entry per binding of its dims.

A dim that was left unbound takes its size from the arrays of a call. Entries are compiled
on first use and the least recently used one goes, so a thousand shapes do not fill the
device.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs

from tgdsl import frontend
from tgdsl.errors import DimError, HandleError, InputError
from tgdsl.optim.step import StepGraphs
from tgdsl.pipeline import Loaded, evaluation, load, without_captures

from .weights import Weights

log = logging.getLogger("tgdsl")

CACHED: Final = 8
"""Bindings of the dims that are kept compiled."""

Variant: TypeAlias = Literal["step", "step+captures", "run", "run+captures"]
Dims: TypeAlias = tuple[int, ...]


@attrs.define(eq=False)
class Bound:
    """A forward with every dim bound.

    Attributes:
        step: The traced step.
        shapes: The shapes of its captures.
        keyed: Whether it reads the random key.
    """

    step: StepGraphs
    shapes: Mapping[str, tuple[int, ...]]
    keyed: bool
    loaded: dict[Variant, Loaded] = attrs.field(factory=dict)

    @classmethod
    def of(cls, step: StepGraphs) -> Bound:
        """Wrap a traced step."""
        captures = step.graph.captures.items()
        shapes = {name: tuple(int(n) for n in t.shape) for name, t in captures}
        return cls(step, shapes, any(n.op.stochastic for n in step.graph.nodes))

    def variant(self, variant: Variant, weights: Weights) -> Loaded:
        """The compiled variant; made on first use."""
        found = self.loaded.get(variant)
        if found is None:
            step = self.step if variant.startswith("step") else evaluation(self.step)
            if not variant.endswith("captures"):
                step = without_captures(step)
            found = self.loaded[variant] = load(
                weights.engine, step, weights.store, precision=weights.precision, tune=weights.tune
            )
        return found

    def destroy(self) -> None:
        """Free every variant."""
        for loaded in self.loaded.values():
            loaded.executable.destroy()
        self.loaded.clear()


class Programs:
    """The entries of one handle."""

    def __init__(
        self,
        what: str,
        inputs: Any,
        dims: Mapping[str, int] | None,
        trace: Callable[[Mapping[str, int]], StepGraphs],
        weights: Weights,
    ) -> None:
        """Check the bound dims, and compile nothing yet."""
        self.names = tuple(frontend.dims_of(inputs))
        self.fixed = check_dims(inputs.__name__, self.names, dims or {})
        self.inputs = inputs
        self._what = what
        self._trace = trace
        self._weights = weights
        self._entries: OrderedDict[Dims, Bound] = OrderedDict()
        self._ahead: Dims | None = None
        self.running = False
        if len(self.fixed) == len(self.names):
            self.compile({})

    def bound(self, dims: Mapping[str, int]) -> Bound:
        """The entry for these dims; traced on first use."""
        key = tuple([dims[name] for name in self.names])
        entry = self._entries.get(key)
        if entry is not None:
            if len(self._entries) > 1:
                self._entries.move_to_end(key)
            return entry
        self._check_fixed(dims)
        sizes = {name: int(dims[name]) for name in self.names}
        if self.running:
            log.info("compiling %s for %s", self._what, sizes)
        entry = self._entries[key] = Bound.of(self._trace(sizes))
        if len(self._entries) > CACHED:
            _, oldest = self._entries.popitem(last=False)
            self._weights.settle()
            oldest.destroy()
        return entry

    def _check_fixed(self, dims: Mapping[str, int]) -> None:
        for name, size in self.fixed.items():
            if dims[name] != size:
                raise InputError(
                    f"{self.inputs.__name__}: dim {name!r} was compiled as {size}, this batch has {dims[name]}"
                )

    def compile(self, dims: Mapping[str, int]) -> Bound:
        """Bind ahead of the first call; from now on `current` is this entry."""
        sizes = {**self.fixed, **check_dims(self.inputs.__name__, self.names, dims)}
        if missing := [n for n in self.names if n not in sizes]:
            raise DimError(f"{self.inputs.__name__}: dim {missing[0]!r} is not bound; pass {missing[0]}=...")
        entry = self.bound(sizes)
        self._ahead = tuple(sizes[n] for n in self.names)
        return entry

    def current(self, what: str) -> Bound:
        """The entry that was bound ahead of calls; what ran last never matters."""
        if self._ahead is None:
            free = [n for n in self.names if n not in self.fixed]
            raise HandleError(
                f"{what}: dim{'s' if len(free) > 1 else ''} {', '.join(map(repr, free))} of "
                f"{self.inputs.__name__} not bound yet",
                hint=f"call compile({', '.join(f'{n}=...' for n in free)}) first",
            )
        return self.bound(dict(zip(self.names, self._ahead, strict=True)))

    def forget(self) -> None:
        """Free every entry; the next call compiles anew."""
        self._weights.settle()
        for entry in self._entries.values():
            entry.destroy()
        self._entries.clear()


def check_dims(owner: str, names: tuple[str, ...], dims: Mapping[str, Any]) -> dict[str, int]:
    """Refuse unknown names and sizes below 1."""
    for name, size in dims.items():
        if name not in names:
            raise DimError(f"{owner} has no dim {name!r}; its dims are: {', '.join(names) or 'none'}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise DimError(f"{owner}: dim {name!r} must be an int >= 1, got {size!r}")
    return dict(dims)
