"""Lines of the user's file: how they are indented, moved, kept as written and exchanged."""

from __future__ import annotations

import difflib
import io
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass

from jax_pmap.emit.render import tidy
from jax_pmap.syntax.parse import ParsedSource

#: Columns black gives a line.
WIDTH = 88


@dataclass(frozen=True, slots=True)
class Change:
    """Lines of the file, counted from 0, and what comes in their place."""

    first: int
    end: int
    lines: tuple[str, ...]


def indent_of(line: str) -> str:
    """The white space that a line begins with."""
    return line[: len(line) - len(line.lstrip())]


def split(text: str) -> tuple[str, ...]:
    """The lines of a text."""
    return tuple(text.split("\n"))


def prefixed(lines: Iterable[str], base: str) -> list[str]:
    """Lines indented by `base`, but not the empty ones."""
    return [base + line if line else "" for line in lines]


def shifted(text: str, base: str) -> list[str]:
    """Lines moved to the right, but not those inside strings."""
    inside: set[int] = set()
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING" or kind.endswith("STRING_START"):
            opened.append(token.start[0])
        if kind == "STRING" or kind.endswith("STRING_END"):
            inside.update(range(opened.pop() + 1, token.end[0] + 1))
    return [
        line if number in inside or not line.strip() else base + line
        for number, line in enumerate(text.rstrip("\n").split("\n"), start=1)
    ]


#: What the helpers of blocks that statements of the user's are put into begin with, as they are named.
BLOCKS = ("own_draws", "summed")


def as_written(parsed: ParsedSource, woven: list[str], unit: str) -> list[str]:
    """The lines of a woven definition; those that were there are character for character the user's.

    They stand a step of indentation further in inside each block that they were put into.
    """
    old = parsed.lines[parsed.definition.lineno - 1 : parsed.definition.end_lineno]
    matcher = difflib.SequenceMatcher(None, [each.strip() for each in old], [e.strip() for e in woven], False)
    within = _within_brackets(woven)
    out: list[str] = []
    around: list[int] = []
    for kind, first, _, start, stop in matcher.get_opcodes():
        for number in range(start, stop):
            new = woven[number]
            while around and new.strip() and number not in within and len(indent_of(new)) <= around[-1]:
                around.pop()
            if kind == "equal":
                line = old[first + number - start]
                # What is the same there and here is empty, or stands in a string.
                out.append(line if line == new else unit * len(around) + line)
                continue
            # An argument in a line of its own would be laid out as a statement: `f=g` as an assignment.
            out += [new] if number in within else _fitted(new, unit)
            if new.strip().startswith(tuple(f"with {name}" for name in BLOCKS)):
                around.append(len(indent_of(new)))
    return out


def _within_brackets(lines: list[str]) -> set[int]:
    """Those of the lines, counted from 0, that begin inside brackets or a string."""
    within: set[int] = set()
    depth = last = 0
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        (first, _), (end, _) = token.start, token.end
        if depth and first > last:
            within.add(first - 1)
        within.update(range(first, end))
        last = end
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.string, 0)
    return within


def _fitted(line: str, unit: str) -> list[str]:
    """A new line of a body, broken as black does where it is too long."""
    indent = indent_of(line)
    columns = len(indent.expandtabs(4))
    if len(line.expandtabs(4)) <= WIDTH:
        return [line]
    try:
        made = tidy(line.strip(), WIDTH - columns).rstrip("\n").split("\n")
    except Exception:  # a part of a statement stays as it is
        return [line]
    return [indent + unit * ((len(e) - len(e.lstrip())) // 4) + e.lstrip() if e else "" for e in made]
