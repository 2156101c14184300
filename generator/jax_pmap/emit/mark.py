"""The comment above a function that was changed where it stands, read again."""

from __future__ import annotations

import contextlib
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from jax_pmap.emit.header import ADDED, IN_PLACE, INSTEAD

#: A line with its end.
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_FIRST = re.compile(rf"\s*# {IN_PLACE} (\S+): `([^`]+)` runs on every device, `([^`]+)` as before\. By:")
_COMMAND = re.compile(r"\s*#\s+(jax-pmap gen .+)")
_SOURCE = re.compile(r"\s*# Source: (.+) sha256:[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Mark:
    """The comment above a function that was changed where it stands."""

    #: Its first line and that of the command, counted from 1, and the first line behind it, from 0.
    line: int
    command_line: int
    end: int
    #: The tool that made the change.
    version: str
    #: Dotted name of the function that callers call, and the name of the mapped one beside it.
    qualname: str
    mapped: str
    command: str
    #: ``"train.py::train_step"``.
    source: str
    #: Source of the decorators that the change took off.
    decorators: tuple[str, ...]
    #: Dotted names of what the change brought besides; None where it cannot be taken back.
    added: tuple[str, ...] | None


def marks(text: str) -> Iterator[Mark]:
    """The marks in a file, from the top; text in a string that looks like one is none."""
    lines = [line.rstrip("\r\n") for line in LINE.findall(text)]
    found = {number: first for number, line in enumerate(lines) if (first := _FIRST.fullmatch(line))}
    comments = _comments(text) if found else set()
    for number, first in found.items():
        if number not in comments:
            continue
        end = number
        while end < len(lines) and lines[end].lstrip().startswith("#"):
            end += 1
        block = lines[number:end]
        command, source = _COMMAND.fullmatch(block[1] if len(block) > 1 else ""), None
        for each in block:
            source = source or _SOURCE.fullmatch(each)
        if command is None or source is None:
            continue
        added = [i for i, each in enumerate(block) if each.lstrip().startswith(f"# {ADDED}")]
        taken = [each.partition(INSTEAD)[2] for each in block if each.lstrip().startswith(f"# {INSTEAD}")]
        yield Mark(
            number + 1,
            number + 2,
            number + added[0] + 1 if added else end,
            first[1],
            source[1].partition("::")[2],
            first[2].rpartition(".")[2],
            command[1],
            source[1],
            tuple(each.strip() for each in taken),
            tuple(re.findall(r"`([^`]+)`", block[added[0]])) if added else None,
        )


def _comments(text: str) -> set[int]:
    """Lines that begin a comment, counted from 0: of a file that is broken, those before the break."""
    lines = set()
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            if token.type == tokenize.COMMENT:
                lines.add(token.start[0] - 1)
    return lines
