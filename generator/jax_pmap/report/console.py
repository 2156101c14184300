"""The stream that reports go to: lines with styles, and text that is made fit for it."""

from __future__ import annotations

import contextlib
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TypeAlias

from jax_pmap.model import Say

#: Text, possibly of several lines, and its style.
Cell: TypeAlias = tuple[str, str]

_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36}
_ASCII = str.maketrans({"→": "->", "·": "-", "…": "...", "×": "x"})
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


@dataclass(frozen=True, slots=True)
class Console:
    """A stream with a width, and whether it takes escape codes."""

    stream: IO[str]
    width: int
    styled: bool

    def print(self, *parts: Cell) -> None:
        """Print `parts` as one line, however long, without blanks at its end."""
        rest = len("".join(text for text, _ in parts).rstrip())
        line = ""
        for whole, style in parts:
            text, rest = whole[:rest], rest - len(whole[:rest])
            codes = [str(_CODES[word]) for word in style.split()]
            line += f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes and text and self.styled else text
        unicode = (getattr(self.stream, "encoding", None) or "utf-8").lower().startswith("utf")
        self.stream.write((line if unicode else line.translate(_ASCII)) + "\n")


def make_console(stream: IO[str], *, plain: bool, width: int | None = None) -> Console:
    """A console on `stream`: no escape codes when `plain`, 80 columns when it is not a terminal.

    Args:
        stream: Where to print, usually ``sys.stderr``.
        plain: True for no colour, no bold, no cursor movement.
        width: Columns; None takes the terminal's, or ``$COLUMNS``, or 80.
    """
    if width is None:
        columns = os.environ.get("COLUMNS", "")
        asked = int(columns) if columns.isascii() and columns.isdigit() else 0
        width = asked if asked >= 20 else _terminal_width(stream)
    return Console(stream, width, styled=not plain)


def _terminal_width(stream: IO[str]) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # no terminal, or no file at all
        return 80


@contextlib.contextmanager
def live_line(console: Console, elapsed: Callable[[], float]) -> Iterator[Say]:
    """Yield a function that shows one note at a time on the last line of a terminal, gone at the end.

    In front of it stand the seconds that `elapsed` tells, which go on while a note stays.
    """
    from rich.console import Console as LiveConsole
    from rich.text import Text

    class Line:
        """What is drawn, several times a second."""

        note = "starting"

        def __rich__(self) -> Text:
            return Text(f"{elapsed():.0f} s  {clean(self.note)}", no_wrap=True, overflow="ellipsis")

    line = Line()
    live = LiveConsole(file=console.stream, force_terminal=True, legacy_windows=False)
    with live.status(line, spinner="dots"):
        yield lambda note: setattr(line, "note", note)


def print_line(text: str, console: Console) -> None:
    """Print one line as it is: never wrapped, so that paths can be copied."""
    console.print((clean(text), ""))


def print_prose(console: Console, prose: str, *, indent: str = "", prefix: str = "", **styles: str) -> None:
    """Print `prose` wrapped between words; lines that start with a blank (commands) stay whole.

    Args:
        console: Where to print.
        prose: Text, possibly of several lines.
        indent: Blanks before every line.
        prefix: First word, styled apart.
        styles: ``style`` of the prose and ``prefix_style``.
    """
    lines: list[str] = []
    for paragraph in (prefix + clean(prose)).split("\n"):
        verbatim = paragraph[:1].isspace() or not paragraph
        lines += (
            [paragraph]
            if verbatim
            else textwrap.wrap(
                paragraph,
                max(console.width - len(indent), 20),
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    for i, line in enumerate(lines):
        head = len(prefix) if i == 0 else 0
        console.print(
            (indent + line[:head], styles.get("prefix_style", "")), (line[head:], styles.get("style", ""))
        )


def clean(text: str) -> str:
    """`text` without escape sequences and control characters, which could repaint the terminal."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))
