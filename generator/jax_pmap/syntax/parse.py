"""The target's file, parsed once for every question asked of it.

Questions go to `ast`, which answers for a 1,000-line file in the time LibCST's scope metadata takes for
thirty; LibCST is for rewriting. Spans are the same either way (a test holds them equal).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from jax_pmap.model import Refusal, RefusalError, Source, Span, refused
from jax_pmap.syntax.definitions import Definition, Function, find

# Only these three end a line for Python; str.splitlines knows more.
_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class ParsedSource:
    """One parse of the target's file."""

    source: Source
    tree: ast.Module
    #: The target in it.
    definition: Function
    #: Definitions around the target, outermost first: classes and functions.
    enclosing: tuple[Definition, ...]
    lines: tuple[str, ...]

    def span(self, node: ast.expr | ast.stmt) -> Span:
        """Place of a node in the file. `ast` counts columns in UTF-8 bytes, spans in characters."""
        return _span(node, self.lines, self.source.shown_path)

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """Source of a node as written, without the decorators of a definition."""
        span = self.span(node)
        if span.line == span.end_line:
            return self.lines[span.line - 1][span.column : span.end_column]
        first, *middle, last = self.lines[span.line - 1 : span.end_line]
        return "\n".join([first[span.column :], *middle, last[: span.end_column]])


def parse(source: Source) -> ParsedSource:
    """Parse the target's file and find the target in it.

    Raises:
        RefusalError: JP005 for a file that does not parse, JP002 / JP004 where no function has the name.
    """
    text = source.text.removeprefix("\ufeff")
    lines = tuple(_LINE_END.split(text))
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        span = Span(source.shown_path, error.lineno or 1, max((error.offset or 1) - 1, 0))
        raise RefusalError(_syntax_refusal(error.msg, span)) from error
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nesting beyond the parser
        raise RefusalError(_syntax_refusal(str(error), Span(source.shown_path, 1))) from error

    chain = find(tree, source.qualname)
    if chain is None:
        raise refused(
            "JP002",
            f"`{source.qualname}` is not defined in `{source.shown_path}`.",
            "Name a function as FILE::FUNC, with dots for nested ones (`Class.method`, `outer.inner`).",
            Span(source.shown_path, 1),
        )
    *enclosing, definition = chain
    if isinstance(definition, ast.ClassDef):
        raise refused(
            "JP004",
            f"`{source.qualname}` is a class.",
            f"Name one of its functions: `{source.shown_path}::{source.qualname}.NAME`.",
            _span(definition, lines, source.shown_path),
        )
    return ParsedSource(source, tree, definition, tuple(enclosing), lines)


def _span(node: ast.expr | ast.stmt, lines: tuple[str, ...], shown_path: str) -> Span:
    end_line = node.end_lineno or node.lineno
    return Span(
        shown_path,
        node.lineno,
        _column(lines[node.lineno - 1], node.col_offset),
        end_line,
        _column(lines[end_line - 1], node.end_col_offset or 0),
    )


def _column(line: str, offset: int) -> int:
    return offset if line.isascii() else len(line.encode()[:offset].decode())


def _syntax_refusal(message: str, span: Span) -> Refusal:
    return Refusal(
        "JP005",
        f"`{span.file}` does not parse: {message}.",
        "Correct the file. Syntax newer than the Python that runs jax-pmap needs a newer Python for it.",
        span,
    )
