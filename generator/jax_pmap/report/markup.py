"""Python source as HTML: coloured by its tokens, with spans of it marked."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from pygments import lex
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType

from jax_pmap.report.console import clean

#: Classes of the style sheet, by what a token is; the first that fits.
_CLASSES = (
    (Comment, "tc"),
    (String, "ts"),
    (Number, "tn"),
    (Keyword, "tk"),
    (Operator.Word, "tk"),
    (Name.Decorator, "td"),
    (Name.Function, "tf"),
    (Name.Class, "tf"),
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A span of the text: lines count from 0, columns too. Of two that overlap, one is in the other."""

    line: int
    column: int
    end_line: int
    end_column: int
    classes: str
    #: What is shown while the pointer is on it.
    tip: str = ""


def marked_lines(text: str, marks: Sequence[Mark] = ()) -> list[Markup]:
    """The lines of `text`, each as HTML of its own: a mark over several lines is an element in each."""
    lines = text.removesuffix("\n").split("\n")
    by_line: list[list[tuple[int, int, Mark]]] = [[] for _ in lines]
    for mark in marks:
        for number in range(max(mark.line, 0), min(mark.end_line + 1, len(lines))):
            indent = len(lines[number]) - len(lines[number].lstrip())
            start = mark.column if number == mark.line else indent
            end = mark.end_column if number == mark.end_line else len(lines[number])
            if start < end:
                by_line[number].append((start, end, mark))
    tokens = _tokens("\n".join(lines))
    return [
        _line(line, coloured, sorted(around, key=lambda each: (each[0], -each[1])))
        for line, coloured, around in zip(lines, tokens, by_line, strict=True)
    ]


def _tokens(text: str) -> list[list[tuple[int, int, str]]]:
    """Of every line, the stretches that have a colour, and the class of it."""
    lines: list[list[tuple[int, int, str]]] = [[]]
    column = 0
    # What the lexer would mend at the ends of the text would move all columns.
    for kind, value in lex(text, PythonLexer(stripnl=False, ensurenl=False)):
        for number, part in enumerate(value.split("\n")):
            if number:
                lines.append([])
                column = 0
            style = _class(kind)
            if part and style:
                lines[-1].append((column, column + len(part), style))
            column += len(part)
    return lines


def _class(kind: _TokenType) -> str:
    return next((name for each, name in _CLASSES if kind in each), "")


def _line(
    line: str, tokens: Sequence[tuple[int, int, str]], marks: Sequence[tuple[int, int, Mark]]
) -> Markup:
    """One line, its marks sorted so that an outer one comes before those in it."""
    edges = {0, len(line)}
    for start, end, _ in (*tokens, *marks):
        edges |= {start, end}
    cuts = sorted(edge for edge in edges if edge <= len(line))
    colours = {start: (end, style) for start, end, style in tokens}
    out: list[str] = []
    opened: list[int] = []
    waiting = list(marks)
    style, until = "", 0
    for start, end in itertools.pairwise(cuts):
        while opened and opened[-1] <= start:
            opened.pop()
            out.append("</span>")
        while waiting and waiting[0][0] <= start:
            _, stop, mark = waiting.pop(0)
            if stop <= start or (opened and stop > opened[-1]):
                continue
            inner = any(other[1] <= stop for other in waiting if other[0] < stop)
            classes = f"{mark.classes} {'outer' if inner else 'leaf'}"
            tip = f' data-tip="{escape(clean(mark.tip))}"' if mark.tip else ""
            out.append(f'<span class="{escape(classes)}"{tip}>')
            opened.append(stop)
        if start in colours:
            until, style = colours[start]
        text = escape(clean(line[start:end]))
        out.append(f'<span class="{style}">{text}</span>' if start < until and style else str(text))
    out += ["</span>"] * len(opened)
    return Markup("".join(out))
