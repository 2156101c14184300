"""The Python blocks of pages: fenced ones in Markdown, directives in reStructuredText, ``>>>`` anywhere.

A marker in a comment right before a block says how it is meant::

    <!-- jax-pmap: skip -->                   it is not run
    <!-- jax-pmap: devices=4 -->              from here on there are four devices, and a fresh namespace
    <!-- jax-pmap: expect-error TypeError --> it has to fail, with that error (or with any)
    <!-- jax-pmap: output -->                 the next block is what the one before it prints
    <!-- jax-pmap: file=stats.py -->          it is also a file that later blocks can import

In reStructuredText the comment is ``.. jax-pmap: skip``.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

_LANGUAGES = frozenset({"python", "py", "python3", "pycon", "python-console", "pycon3"})
_FENCE = re.compile(r"^([ \t]*(?:>[ \t]?)*)(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_MARKER = re.compile(r"<!--\s*jax-pmap:\s*(.*?)\s*-->")
_RST_MARKER = re.compile(r"^\s*\.\.\s+jax-pmap:\s*(.*?)\s*$")
_DIRECTIVE = re.compile(
    r"^(\s*)\.\.\s+(code-block|code|sourcecode|testcode|testoutput|testsetup)::\s*(\S*)\s*$"
)
_NAMED = re.compile(r"#\s*([A-Za-z_]\w*\.py)\s*(?:\n|$)")
_WORDS = ("skip", "devices", "expect-error", "output", "file")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page."""

    #: ``"python"`` or ``"doctest"``.
    kind: str
    #: Without the indentation that the whole block has.
    code: str
    #: Page line of the code's first line, from 1.
    line: int
    #: Characters of indentation that were taken off.
    indent: int = 0
    skip: bool = False
    #: Error name, ``""`` for any error, None where the block is to run.
    expect_error: str | None = None
    devices: int | None = None
    #: What the page shows as the block's output, and where.
    output: str | None = None
    output_line: int = 0
    #: ``"stats.py"`` of a block that is so marked, or begins with ``# stats.py``: later blocks can import it.
    name: str = ""


@dataclass(frozen=True, slots=True)
class BadMarker:
    """A marker that says nothing that is known."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class _Raw:
    language: str
    code: str
    line: int
    indent: int
    marker: str
    is_output: bool = False


def blocks_of(text: str, suffix: str) -> tuple[list[Block], list[BadMarker]]:
    """The Python blocks of a page and the markers that cannot be read.

    Args:
        text: the page.
        suffix: ``".md"``, ``".rst"`` or ``".py"`` for docstrings.
    """
    lines = text.splitlines()
    if suffix == ".py":
        return [_block(raw, {}) for raw in _docstrings(text)], []
    raws = _rst(lines) if suffix == ".rst" else _markdown(lines)
    blocks: list[Block] = []
    bad: list[BadMarker] = []
    for raw in raws:
        settings = _settings(raw.marker)
        if settings is None:
            bad.append(BadMarker(raw.marker, raw.line))
            settings = {}
        if raw.is_output or "output" in settings:
            if blocks and blocks[-1].output is None and blocks[-1].kind == "python":
                blocks[-1] = _with_output(blocks[-1], raw)
        elif raw.language in _LANGUAGES or raw.language == "doctest":
            blocks.append(_block(raw, settings))
    return blocks, bad


def _with_output(block: Block, raw: _Raw) -> Block:
    import dataclasses

    return dataclasses.replace(block, output=raw.code, output_line=raw.line)


def _block(raw: _Raw, settings: dict[str, str]) -> Block:
    named = _NAMED.match(raw.code)
    is_doctest = raw.language == "doctest" or raw.code.lstrip().startswith(">>>")
    return Block(
        "doctest" if is_doctest else "python",
        raw.code,
        raw.line,
        raw.indent,
        "skip" in settings,
        settings.get("expect-error"),
        int(settings["devices"]) if "devices" in settings else None,
        name=settings.get("file") or (named[1] if named else ""),
    )


def _settings(marker: str) -> dict[str, str] | None:
    """``"devices=4 expect-error TypeError"`` as a dict, None where a word is not known."""
    found: dict[str, str] = {}
    words = marker.split()
    while words:
        name, _, value = words.pop(0).partition("=")
        if name not in _WORDS or (
            name == "devices" and not (value.isascii() and value.isdigit() and int(value))
        ):
            return None
        if name == "file" and not re.fullmatch(r"[A-Za-z_]\w*\.py", value):
            return None
        if (
            name == "expect-error"
            and not value
            and words
            and words[0].isidentifier()
            and words[0] not in _WORDS
        ):
            value = words.pop(0)
        found[name] = value
    return found


# --- Markdown -----------------------------------------------------------------------------


def _markdown(lines: list[str]) -> Iterator[_Raw]:
    index, marker = 0, ""
    while index < len(lines):
        line = lines[index]
        fence = _FENCE.match(line)
        if fence:
            prefix, ticks, info = fence[1], fence[2], fence[3].strip()
            end = next(
                (
                    at
                    for at in range(index + 1, len(lines))
                    if re.fullmatch(rf"[ \t>]*{re.escape(ticks[0])}{{{len(ticks)},}}[ \t]*", lines[at])
                ),
                len(lines),
            )
            body = lines[index + 1 : end]
            code, indent = _unindented([_unquoted(each, prefix) for each in body])
            language = re.split(r"[\s{},.:]+", info.strip("{}. ") or "text", maxsplit=1)[0].lower()
            yield _Raw(language, code, index + 2, indent, marker, language == "output")
            index, marker = end + 1, ""
            continue
        found = _MARKER.search(line)
        if found:
            marker = f"{marker} {found[1]}".strip()
        elif line.strip() and not line.strip().startswith("<!--"):
            marker = ""
        index += 1


def _unquoted(line: str, prefix: str) -> str:
    """A line without the ``>`` of a quotation and the indentation of a list."""
    if ">" in prefix:
        return re.sub(r"^[ \t]*(?:>[ \t]?)+", "", line)
    return line


def _unindented(body: list[str]) -> tuple[str, int]:
    text = "\n".join(body)
    plain = textwrap.dedent(text)
    first = next((line for line in body if line.strip()), "")
    indent = len(first) - len(next((line for line in plain.splitlines() if line.strip()), ""))
    return plain + "\n", max(indent, 0)


# --- reStructuredText ---------------------------------------------------------------------


def _rst(lines: list[str]) -> Iterator[_Raw]:
    index, marker = 0, ""
    while index < len(lines):
        line = lines[index]
        found = _RST_MARKER.match(line)
        directive = _DIRECTIVE.match(line)
        if found:
            marker = f"{marker} {found[1]}".strip()
        elif directive:
            end, start = _rst_body(lines, index, len(directive[1]))
            code, indent = _unindented(lines[start:end])
            kind = directive[2]
            language = "python" if kind.startswith("test") else directive[3].lower()
            yield _Raw(language, code, start + 1, indent, marker, kind == "testoutput")
            index, marker = end, ""
            continue
        elif line.lstrip().startswith(">>> "):
            end = next((at for at in range(index, len(lines)) if not lines[at].strip()), len(lines))
            code, indent = _unindented(lines[index:end])
            yield _Raw("doctest", code, index + 1, indent, marker)
            index, marker = end, ""
            continue
        elif line.strip():
            marker = ""
        index += 1


def _rst_body(lines: list[str], at: int, indent: int) -> tuple[int, int]:
    """Where the body of the directive at `at` ends and starts: what is indented further, options aside."""
    start = at + 1
    while start < len(lines) and re.match(r"\s+:[\w-]+:", lines[start]):
        start += 1
    while start < len(lines) and not lines[start].strip():
        start += 1
    end = start
    while end < len(lines) and (
        not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent
    ):
        end += 1
    while end > start and not lines[end - 1].strip():
        end -= 1
    return end, start


# --- docstrings ---------------------------------------------------------------------------


def _docstrings(text: str) -> Iterator[_Raw]:
    """``>>>`` examples of docstrings, one block for each docstring."""
    from jax_pmap.sources import parse

    for node in ast.walk(parse(text, "docstrings")):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
            continue
        value = first.value.value
        if isinstance(value, str) and re.search(r"^\s*>>> ", value, re.MULTILINE):
            yield _Raw("doctest", textwrap.dedent(value.expandtabs()), first.lineno, 0, "")
