"""Jupyter notebooks, read as one Python file: the code cells one after the other."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

#: Line before each cell of the text made from a notebook.
_CELL = "# cell {number}"
_CELL_LINE = re.compile(r"# cell (\d+)")
#: Cell magics whose cell is Python all the same.
_PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%python")
#: A line for IPython or the shell: `%magic`, `!command`, `name = !command`, `?name`, `name?`.
_MAGIC = re.compile(r"\s*([%!?]|[\w., ]+=\s*[%!])|.*\?\s*$")


def is_notebook(path: Any) -> bool:
    """Whether a path names a notebook."""
    return str(path).endswith(".ipynb")


def python_text(data: bytes) -> str:
    """The code cells of a notebook, each behind a line that numbers it among all cells, from 1.

    Magics are blanked, and so are cells that are no Python without a definition in them.

    Raises:
        ValueError: it is not the JSON of a notebook.
    """
    document = json.loads(data.decode("utf-8-sig"))
    if not isinstance(document, dict):
        raise ValueError("it holds no cells")
    sheets = document.get("worksheets") or [document]
    lines: list[str] = []
    number = 0
    for cell in (cell for sheet in sheets for cell in sheet.get("cells", ())):
        number += 1
        if cell.get("cell_type") != "code":
            continue
        source = cell.get("source", cell.get("input", ""))
        text = source if isinstance(source, str) else "".join(source)
        lines += [_CELL.format(number=number), *_python(text.split("\n"))]
    return "\n".join(lines) + "\n"


def place(text: str, line: int) -> tuple[int, int] | None:
    """(cell, line in it) of a line of `python_text`, both from 1."""
    lines = text.split("\n")
    for index in range(min(line, len(lines)) - 1, -1, -1):
        if found := _CELL_LINE.fullmatch(lines[index]):
            return int(found[1]), line - index - 1
    return None


def _python(lines: list[str]) -> list[str]:
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%"):
        if not first.split()[0].startswith(_PYTHON_MAGICS):
            return [""] * len(lines)
        lines = ["" if line is first else line for line in lines]
    if _parses(lines):
        return lines
    without = [re.match(r"\s*", line)[0] + "pass" if _MAGIC.match(line) else line for line in lines]  # type: ignore[index]
    if _parses(without):
        # A blank line reads better than `pass`, where the block has more in it.
        blank = ["" if _MAGIC.match(line) else line for line in lines]
        return blank if _parses(blank) else without
    defines = any(re.match(r"\s*(async\s+def|def|class)\s", line) for line in lines)
    return lines if defines else [""] * len(lines)


def _parses(lines: list[str]) -> bool:
    try:
        ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
