"""A file's text by its lines, and where the nodes of its tree stand in it."""

from __future__ import annotations

import ast
import re
from functools import cached_property
from typing import TypeAlias

from jax_pmap.model import Span

#: What has a place in a file.
Node: TypeAlias = ast.expr | ast.stmt | ast.arg

# Only these three end a line for Python; str.splitlines knows more.
_LINE_END = re.compile(r"\r\n|\r|\n")


def parsed_expression(text: str) -> ast.expr:
    """The tree of an expression that was cut out of a file, over several lines or with a comment behind it.

    Raises:
        SyntaxError: it is no expression.
    """
    return ast.parse(in_parentheses(text), mode="eval").body


def in_parentheses(text: str) -> str:
    """What is parsed of it: places in the tree are those in this."""
    return f"({text}\n)"


class Lines:
    """The text of a file. `ast` counts columns in UTF-8 bytes; what is answered here counts characters."""

    def __init__(self, text: str, shown: str) -> None:
        """Take the `text` of the file that people see as `shown`."""
        self.text = text
        self.shown = shown

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """Lines as Python counts them, without their ends."""
        return tuple(_LINE_END.split(self.text))

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    def column(self, line: int, byte_column: int) -> int:
        """Characters before the place that `ast` counts in UTF-8 bytes."""
        text = self.lines[line - 1]
        return byte_column if text.isascii() else len(text.encode()[:byte_column].decode(errors="replace"))

    def offset(self, line: int, byte_column: int) -> int:
        """Offset into the text of a place that `ast` gives."""
        return self._starts[line - 1] + self.column(line, byte_column)

    def bounds(self, node: Node) -> tuple[int, int]:
        """Offsets of the start and the end of `node`."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The text of `node` as it is written, without the decorators of a definition."""
        start, end = self.bounds(node)
        return self.text[start:end]

    def is_static(self, statement: ast.stmt) -> bool:
        """Whether a statement shares its lines with no other one."""
        span = self.span(statement)
        ahead, behind = (
            self.lines[span.line - 1][: span.column],
            self.lines[span.end_line - 1][span.end_column :],
        )
        return not ahead.strip() and behind.strip()[:1] in ("", "#")

    def span(self, node: ast.expr | ast.stmt) -> Span:
        """The place of `node`."""
        end_line = node.end_lineno or node.lineno
        return Span(
            self.shown,
            node.lineno,
            self.column(node.lineno, node.col_offset),
            end_line,
            self.column(end_line, node.end_col_offset or 0),
        )
