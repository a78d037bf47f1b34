"""Where in the user's code an op was called.

Frames are told apart by the package's own folder, found at run time: a filter by a
folder *name* loses the user's line as soon as the package is installed elsewhere.
Columns are resolved only when an error is printed, because `co_positions` is slow and
every op records a site.
"""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType
from typing import Final

import attrs

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INTERNAL: Final = (_PACKAGE, "<attrs generated ")
# Constructors of modules are generated, and call back into the package.


@attrs.frozen
class Site:
    """One line of the user's code."""

    code: CodeType = attrs.field(repr=False)
    lasti: int
    line: int

    @property
    def file(self) -> str:
        """The path of the source file."""
        return self.code.co_filename

    @property
    def function(self) -> str:
        """The qualified name of the function."""
        return self.code.co_qualname

    @property
    def short(self) -> str:
        """`file.py:12`, as operands are labelled."""
        return f"{os.path.basename(self.file)}:{self.line}"

    def __str__(self) -> str:
        source = linecache.getline(self.file, self.line)
        out = f'  File "{self.file}", line {self.line}, in {self.function}'
        text = source.strip()
        if not text:
            return out
        out += f"\n    {text}"
        line, end_line, column, end = list(self.code.co_positions())[self.lasti // 2]
        if line == end_line and column is not None and end is not None:
            # co_positions counts UTF-8 bytes; a caret under the wrong letter would mislead.
            raw = source.encode()
            start = len(raw[:column].decode(errors="replace"))
            width = len(raw[column:end].decode(errors="replace"))
            indent = len(source) - len(source.lstrip())
            out += f"\n    {' ' * (start - indent)}{'^' * width}"
        return out


def user_site() -> Site | None:
    """The innermost frame outside the package, or None when there is none."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_INTERNAL):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return Site(frame.f_code, frame.f_lasti, frame.f_lineno)
