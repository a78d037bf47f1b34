"""The gradients of attention: probabilities are computed again from scores and log-sum-exps."""

from __future__ import annotations

from tgdsl.ir.index import Index

from .attention import LOG2_E, LOWEST, AttentionKernel
from .attention_tile import ACROSS, COLUMNS, quads
from .tiling import WIDTH
from .wgsl import literal


class _GradientKernel(AttentionKernel):
    """What both gradients share."""

    def operands(self) -> None:
        """Name the operands."""
        self.query, self.key, self.value, self.out, self.lse, self.ct = self.node.inputs

    def lse_at(self, row: Index) -> str:
        """The log-sum-exp of a query, of powers of two and finite."""
        text = self.emit.value(self.lse, (*self.batch, row))
        return f"max({text} * {literal(LOG2_E, 'f32')}, {LOWEST})"

    def dot(self, row: Index, first: str, step: int) -> str:
        """Emit a part of the product of result and cotangent of a query: every `step`-th vector from `first` on."""
        e, name = self.emit, self.emit.name("delta")
        e.line(f"var {name} = 0.0f;")
        wide = quads(self.s.e)
        for begin in range(0, wide, step):
            at = f"{first} + {begin}" if begin else first
            exact = begin + step <= wide and self.s.e % WIDTH == 0
            a = self.quad(self.out, row, at, exact=exact)
            b = self.quad(self.ct, row, at, exact=exact)
            e.line(f"{name} += dot({a}, {b});")
        return name

    def weights(self, i: int, j: int, s: str, dp: str, lse: str, delta: str) -> None:
        """Emit: a score becomes its probability, its cotangent becomes that of `q @ k.mT`."""
        e, seen = self.emit, self.seen(i, j)
        scaled = f"{s} * {literal(self.scale * LOG2_E, 'f32')}"
        shown = f"select(-inf(), {scaled}, {seen})" if seen else scaled
        e.line(f"{s} = exp2({shown} - {lse});")
        e.line(f"{dp} = {s} * ({dp} - {delta}) * {literal(self.scale, 'f32')};")


class QueryGradient(_GradientKernel):
    """The cotangent of a tile of queries."""

    def prepare(self) -> None:
        """Per row its log-sum-exp and how much of the cotangent lies along the result."""
        self.operands()
        e = self.emit
        parts = [self.dot(row, "tx", ACROSS) for row in self.row_at]
        self.deltas = [e.let("delta", text, 0) for text in self.across(parts, "{a} + {b}")]
        self.lses = [e.let("lse", self.lse_at(row), 0) for row in self.row_at]
        self.result = self.sums("dq", self.node, self.s.d)
        e.line("workgroupBarrier();")

    def step(self) -> None:
        """Scores, their cotangents, and the sum of keys."""
        s = self.scores("s", self.query, self.key)
        dp = self.scores("dp", self.ct, self.value)
        for i in range(self.t.tm):
            for j in range(WIDTH):
                self.weights(i, j, s[i][j], dp[i][j], self.lses[i], self.deltas[i])
        self.add_rows(self.result, dp, self.key)

    def finish(self) -> None:
        """Store."""
        self.store(self.result)


class KeyValueGradient(_GradientKernel):
    """The cotangents of a tile of keys and values, walking over queries."""

    def first(self) -> str:
        """A causal key is seen by its own query and later ones."""
        return f"row_tile / {COLUMNS} * {COLUMNS}" if self.causal else "0"

    def end(self) -> str:
        """The last query sees every key."""
        return str(self.s.columns)

    def prepare(self) -> None:
        """The tiles of the results."""
        self.operands()
        self.shared.append(f"var<workgroup> shared_f32: array<f32, {self.t.threads}>;")
        self.keys = self.sums("dk", self.node, self.s.d)
        self.values = self.sums("dv", self.node, self.s.e, self.s.d)

    def step(self) -> None:
        """Scores and their cotangents, turned; the sums of cotangents and of queries."""
        e = self.emit
        self._deltas()
        s = self.scores("s", self.key, self.query)
        dp = self.scores("dp", self.value, self.ct)
        lanes = self.t.threads // COLUMNS
        for j in range(WIDTH):
            lse = e.let("lse", self.lse_at(self.place(self.column(j), self.s.columns, "col")), len(e.scopes) - 1)
            parts = [f"shared_f32[(tx + {ACROSS * j}) * {lanes} + {k}]" for k in range(lanes)]
            delta = e.let("delta", " + ".join(parts), len(e.scopes) - 1)
            for i in range(self.t.tm):
                self.weights(i, j, s[i][j], dp[i][j], lse, delta)
        self.add_rows(self.values, s, self.ct)
        self.add_rows(self.keys, dp, self.query)

    def _deltas(self) -> None:
        """Several threads per query multiply its result with its cotangent; barriers follow before that is read."""
        lanes = self.t.threads // COLUMNS
        query = self.place(f"col_tile + lane_id / {lanes}", self.s.columns, "col")
        self.emit.line(f"shared_f32[lane_id] = {self.dot(query, f'lane_id % {lanes}', lanes)};")

    def finish(self) -> None:
        """Store."""
        self.store(self.keys)
        self.store(self.values)
