"""Tables without rules.

Of rich only the widths of characters are used here: the rest of it takes longer to import than a whole
report takes to print.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from jax_pmap.report.console import Cell, Console

#: Blanks between columns.
_GAP = 2
#: Cells that a column of prose keeps before other columns are cut.
_PROSE = 12


@dataclass(frozen=True, slots=True)
class Column:
    """Heading and manners of a column."""

    heading: str
    #: True for prose, which is wrapped where the table is too wide.
    wraps: bool = False
    right: bool = False


def clip(text: str, width: int) -> str:
    """`text` with its end left out where it takes more than `width` cells."""
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)) + "…"


def natural_width(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> int:
    """Cells the table takes when nothing in it is wrapped."""
    return sum(_widths(columns, rows)) + _GAP * (len(columns) - 1)


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], console: Console, indent: int = 2
) -> None:
    """Print dim headings and `rows` in aligned columns: prose is wrapped to fit, other cells are cut."""
    widths = _fitting(columns, _widths(columns, rows), max(console.width - indent, 20))
    for row in ([(column.heading, "dim") for column in columns], *rows):
        cells = [
            _lines(text, width, column.wraps)
            for (text, _), width, column in zip(row, widths, columns, strict=True)
        ]
        for i in range(max(map(len, cells))):
            parts: list[Cell] = [(" " * indent, "")]
            for lines, (_, style), width, column in zip(cells, row, widths, columns, strict=True):
                text = lines[i] if i < len(lines) else ""
                blanks = " " * (width - cell_len(text))
                parts += [(blanks, ""), (text, style)] if column.right else [(text, style), (blanks, "")]
                parts.append((" " * _GAP, ""))
            console.print(*parts)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[int]:
    return [
        max(
            cell_len(line)
            for text in (column.heading, *(row[i][0] for row in rows))
            for line in text.split("\n")
        )
        for i, column in enumerate(columns)
    ]


def _fitting(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """`widths`, made to add up to `room` at most: columns of prose give first, then the widest."""
    excess = sum(widths) + _GAP * (len(widths) - 1) - room
    for i, column in enumerate(columns):
        if column.wraps and excess > 0:
            given = max(min(excess, widths[i] - _PROSE), 0)
            widths[i] -= given
            excess -= given
    while excess > 0 and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
        excess -= 1
    return widths


def _lines(text: str, width: int, wraps: bool) -> list[str]:
    if not wraps:
        return [clip(line, width) for line in text.split("\n")]
    lines = [""]
    for word in text.split():
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
        while cell_len(lines[-1]) > width > 1:
            head = set_cell_size(lines[-1], width).rstrip()
            lines[-1:] = [head, lines[-1][len(head) :]]
    return lines
