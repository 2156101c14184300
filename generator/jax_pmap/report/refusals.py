"""Refusals the way compilers print theirs: reason, place, source line with carets, hint, details."""

from __future__ import annotations

import tokenize
from pathlib import Path

from rich.cells import cell_len

import jax_pmap.notebook as notebook
from jax_pmap.model import Refusal, Span
from jax_pmap.report.console import Console, clean, print_prose
from jax_pmap.report.layout import clip

#: Lines of one detail of a refusal, such as a traceback; its end says most, so its end is kept.
MAX_DETAIL_LINES = 40


def print_refusal(refusal: Refusal, console: Console) -> None:
    """Print `refusal` the way compilers do: reason, place, source line with carets, hint, details."""
    print_prose(
        console,
        f": {refusal.reason}",
        prefix=f"error[{refusal.code}]",
        style="bold",
        prefix_style="bold red",
    )
    if refusal.span is not None:
        _print_source(refusal.span, console)
    if refusal.hint:
        console.print()
        print_prose(console, refusal.hint, prefix="hint: ", prefix_style="cyan")
    # A traceback comes last: it is long, and its last line is the one to read.
    for detail in sorted(refusal.details, key=lambda text: text.lstrip().startswith("Traceback")):
        console.print()
        for line in _tail(clean(detail).expandtabs().rstrip().split("\n")):
            console.print((f"  {line}".rstrip(), "dim"))
    console.print()
    console.print((f"For more: jax-pmap explain {refusal.code}", "dim"))


def _tail(lines: list[str]) -> list[str]:
    if len(lines) <= MAX_DETAIL_LINES:
        return lines
    left_out = len(lines) - MAX_DETAIL_LINES + 1
    return [f"… {left_out} lines left out", *lines[left_out:]]


def _print_source(span: Span, console: Console) -> None:
    """``--> file:line:column`` and, where the file can be read, its line with carets under the span."""
    file, number = file_and_line(span)
    margin = " " * len(str(number))
    lines = file_lines(span.file) or []
    source = lines[span.line - 1] if 0 < span.line <= len(lines) else ""
    # A span that knows no more than the line begins with the statement on it.
    start = max(span.column, len(source) - len(source.lstrip())) if source.strip() else span.column
    console.print((f"{margin}--> {clean(file)}:{number}:{start + 1}", "cyan"))
    if not 0 < span.line <= len(lines):
        return
    # Carets are placed by what is shown: tabs become blanks, wide characters take two cells.
    before = _visible(source[:start])
    end = span.end_column if span.end_line == span.line and span.end_column > start else len(source)
    marked = _visible(source[start:end], cell_len(before))
    after = _visible(source[end:])
    room = max(console.width - len(margin) - 4, 20)
    indent = len(before) - len(before.lstrip())
    if cell_len(before) + cell_len(marked) + cell_len(after) > room and indent > 4:
        before = before[indent - 4 :]
    if cell_len(before) > room // 2 and cell_len(before) + cell_len(marked) > room:
        before = "…" + before[-(room // 3) :]
    marked = clip(marked, max(room - cell_len(before), 8))
    line = clip(before + marked + after, room)
    carets = " " * cell_len(before) + "^" * max(cell_len(marked.rstrip()), 1)
    for head, text, style in ((margin, "", ""), (str(number), line, ""), (margin, carets, "red")):
        console.print((f"{head} | ", "cyan"), (text, style))


def _visible(text: str, column: int = 0) -> str:
    """`text` with tabs expanded as at `column` and control characters left out."""
    return clean((" " * (column % 8) + text).expandtabs()[column % 8 :])


def file_lines(name: str) -> list[str] | None:
    """Lines of a file that a span names, of a notebook those of its code."""
    # Spans name files relative to the project, which may be entered from a folder below its root.
    for folder in (Path.cwd(), *Path.cwd().parents):
        try:
            if notebook.is_notebook(name):
                return notebook.python_text((folder / name).read_bytes()).split("\n")
            with tokenize.open(folder / name) as file:
                return file.read().split("\n")
        except (FileNotFoundError, NotADirectoryError):
            if (folder / "pyproject.toml").exists() or (folder / ".git").exists():
                return None
        except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
            return None
    return None


def file_and_line(span: Span) -> tuple[str, int]:
    """A file and a line as people find them: ``("train.py", 12)``, ``("nb.ipynb cell 3", 4)``."""
    if notebook.is_notebook(span.file):
        found = notebook.place("\n".join(file_lines(span.file) or []), span.line)
        if found is not None:
            return f"{span.file} cell {found[0]}", found[1]
    return span.file, span.line


def place(span: Span) -> str:
    """``FILE:LINE`` as people find it."""
    file, line = file_and_line(span)
    return f"{clean(file)}:{line}"
