"""The forward of attention: an online softmax over tiles of keys."""

from __future__ import annotations

from tgdsl.ir import Attention, Node

from .attention import LN_2, LOG2_E, LOWEST, AttentionKernel
from .tiling import WIDTH
from .wgsl import literal


class ForwardKernel(AttentionKernel):
    """Result and log-sum-exp of a tile of queries; either may be missing.

    Scores are kept as powers of two. A row's maximum is known to all its threads, its sum is kept in
    parts until the end.
    """

    def prepare(self) -> None:
        """Maxima, sums and the tile of the result."""
        self.out = self._member("out")
        self.lse = self._member("lse")
        self.query, self.key = self.node.inputs[:2]
        rows = range(self.t.tm)
        self.top = [self.emit.name(f"top_{i}") for i in rows]
        self.total = [self.emit.name(f"total_{i}") for i in rows]
        for i in rows:
            self.emit.line(f"var {self.top[i]} = {LOWEST};")
            self.emit.line(f"var {self.total[i]} = 0.0f;")
        if self.out is not None:
            self.result = self.sums("out", self.out, self.s.e)

    def _member(self, role: str) -> Node | None:
        for node in self.group.members:
            lowering = node.op.lower
            if isinstance(lowering, Attention) and lowering.role == role:
                return node
        return None

    def step(self) -> None:
        """Scores, new maxima, weights, and the sum of values."""
        e = self.emit
        names = self.scores("s", self.query, self.key)
        factor = literal(self.scale * LOG2_E, "f32")
        most: list[str] = []
        for i, row in enumerate(names):
            for j, s in enumerate(row):
                seen = self.seen(i, j)
                e.line(f"{s} = {f'select(-inf(), {s} * {factor}, {seen})' if seen else f'{s} * {factor}'};")
            most.append(f"max(max({row[0]}, {row[1]}), max({row[2]}, {row[3]}))")
        for i, found in enumerate(self.across(most, "max({a}, {b})")):
            self._rescale(i, found, names[i])
        if self.out is None:
            e.line("workgroupBarrier();")
        else:
            self.add_rows(self.result, names, self.out.inputs[2])

    def _rescale(self, i: int, found: str, row: list[str]) -> None:
        e = self.emit
        top, shrink = e.name("new_top"), e.name("shrink")
        e.line(f"let {top} = max({self.top[i]}, {found});")
        e.line(f"let {shrink} = exp2({self.top[i]} - {top});")
        e.line(f"{self.top[i]} = {top};")
        for s in row:
            e.line(f"{s} = exp2({s} - {top});")
        sums = " + ".join(row[:WIDTH])
        e.line(f"{self.total[i]} = fma({self.total[i]}, {shrink}, {sums});")
        for name in self.result.names[i] if self.out is not None else ():
            e.line(f"{name} *= {shrink};")

    def finish(self) -> None:
        """Divide by the sums, and store."""
        e = self.emit
        totals = self.across(self.total, "{a} + {b}")
        if self.out is not None:
            # The largest score adds 1, so a sum below 1 is that of a row which sees nothing.
            self.store(self.result, [e.let("inverse", f"1.0f / max({t}, 1.0f)", 0) for t in totals])
        for i, total in enumerate(totals if self.lse is not None else ()):
            self._store_lse(i, total)

    def _store_lse(self, i: int, total: str) -> None:
        e, node = self.emit, self.lse
        assert node is not None
        conditions = [c for c in ("tx == 0", self.live(i)) if c]
        e.open()
        text = f"fma({self.top[i]}, {literal(LN_2, 'f32')}, log(max({total}, 1.0f)))"
        value = e.let("lse", f"select({text}, {LOWEST}, {total} == 0.0f)", len(e.scopes) - 1)
        for key in self.stores.get(node.id, ()):
            e.store(key, node, (*self.batch, self.row_at[i]), value)
        e.close(f"if ({' && '.join(conditions)})")
