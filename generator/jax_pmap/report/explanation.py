"""A diagnostic at length, for `jax-pmap explain`."""

from __future__ import annotations

import textwrap

from jax_pmap.diagnostics import Diagnostic

_BOLD, _RESET = "\x1b[1m", "\x1b[0m"


def explanation(diagnostic: Diagnostic, *, width: int = 80, bold: bool = False) -> str:
    """`diagnostic` as text: prose wrapped to `width` (at most 88) columns, code as it is."""
    width = max(30, min(width, 88))

    def heading(text: str) -> str:
        return f"{_BOLD}{text}{_RESET}" if bold else text

    blocks = [
        "\n".join(heading(line) for line in _wrap(f"{diagnostic.code}: {diagnostic.title}", width)),
        _section(diagnostic.meaning, width),
        heading("Why it bites"),
        _section(diagnostic.why, width),
        heading("The cure"),
        _section(diagnostic.cure, width),
        heading("Example"),
        _code(diagnostic.example),
    ]
    if diagnostic.command:
        blocks.append(_code(f"$ {diagnostic.command}"))
    if diagnostic.fixed:
        blocks += [heading("Instead"), _code(diagnostic.fixed)]
    return "\n\n".join(blocks) + "\n"


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _section(prose: str, width: int) -> str:
    paragraphs = (_wrap(paragraph, width - 2) for paragraph in prose.split("\n\n"))
    return "\n\n".join(textwrap.indent("\n".join(lines), "  ") for lines in paragraphs)


def _code(code: str) -> str:
    return textwrap.indent(code.rstrip("\n"), "    ")
