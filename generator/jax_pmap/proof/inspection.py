"""The source of a parallel function that the user wrote, with its collectives and the placements in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jax_pmap.model import Communication, Inspected, Listing, Part, Placed, Source, Span, Sync
from jax_pmap.sources import decode, parse, read_bytes
from jax_pmap.worker import protocol

#: Characters of an expression that a collective is shown with.
SHOWN = 60


@dataclass(slots=True)
class _File:
    """A file of the user's, and the functions in it, or other statements, that were traced."""

    shown: str
    lines: list[str]
    tree: ast.Module

    def span(self, place: protocol.Place) -> Span:
        """The expression at a place; the tracer counts columns in bytes."""
        start, end = self._column(place.line, place.column), self._column(place.end_line, place.end_column)
        return Span(self.shown, place.line, start, place.end_line, end)

    def _column(self, line: int, column: int) -> int:
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return len(text.encode()[:column].decode(errors="replace"))

    def around(self, line: int) -> ast.stmt | None:
        """The outermost function with a line, a method too, or the statement of the file with it."""
        found: list[ast.stmt] = [each for each in self.tree.body if line in _lines(each)]
        while found and isinstance(found[0], ast.ClassDef):
            found = [each for each in found[0].body if line in _lines(each)]
        return found[0] if found else None

    def calls(self, span: Span) -> Iterator[ast.Call]:
        """The call that is at a place."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and node.lineno == span.line and node.end_lineno == span.end_line:
                columns = (
                    self._column(node.lineno, node.col_offset),
                    self._column(node.end_lineno or 0, node.end_col_offset or 0),
                )
                if columns == (span.column, span.end_column):
                    yield node

    def text(self, node: ast.expr) -> str:
        """An expression in one line, its end left out where it is long."""
        text = " ".join((ast.get_source_segment("\n".join(self.lines), node) or "").split())
        return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def inspected(answer: protocol.Listing, source: Source, line: int) -> Inspected:
    """What a worker lists of a parallel function, in the files of the user's project.

    Args:
        answer: the placements and the collectives.
        source: the file of the function.
        line: where that is in it: its statement comes first.
    """
    files: dict[str, _File | None] = {}
    listed: dict[tuple[str, int], tuple[_File, ast.stmt, list[Placed]]] = {}

    def own(places: Sequence[protocol.Place]) -> tuple[_File, protocol.Place] | None:
        for place in places:
            if place.file not in files:
                files[place.file] = _read(Path(place.file), source.root)
            file = files[place.file]
            if file is not None and place.end_line:
                return file, place
        return None

    def keep(file: _File, line: int, values: Sequence[Placed]) -> None:
        node = file.around(line)
        if node is not None:
            listed.setdefault((file.shown, node.lineno), (file, node, []))[2].extend(values)

    first = protocol.Place(str(source.path), line, 0, line, 0)
    if (found := own([first])) is not None:
        keep(found[0], line, [])
    for value in answer.values:
        if (found := own(value.places)) is not None:
            span = found[0].span(found[1])
            keep(found[0], span.line, [Placed(span, _parts(value.parts))])
    communication: dict[tuple[Span, str], Communication] = {}
    for each in answer.collectives:
        if (found := own(each.places)) is None:
            continue
        file, span = found[0], found[0].span(found[1])
        keep(file, span.line, [])
        op, text = _as_written(file, span, each.primitive)
        before = communication.get((span, op))
        size = each.bytes + (before.sync.bytes if before is not None else 0)
        given = tuple(dict.fromkeys((*(before.given if before is not None else ()), *each.given)))
        sync = Sync(op, text, "wrap", span, bytes=size, along=each.axes)
        communication[span, op] = Communication(sync, given, each.differentiating)
    return Inspected(tuple(_listing(*each) for each in listed.values()), tuple(communication.values()))


def _read(path: Path, root: Path) -> _File | None:
    """A file of the project; None of another one."""
    if not path.is_relative_to(root) or "site-packages" in path.parts:
        return None
    content = read_bytes(path)
    if content is None:
        return None
    text = decode(content, str(path)).text
    return _File(path.relative_to(root).as_posix(), text.split("\n"), parse(text, str(path)))


def _lines(node: ast.stmt) -> range:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    return range(first, (node.end_lineno or node.lineno) + 1)


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return ""


def _listing(file: _File, node: ast.stmt, values: Sequence[Placed]) -> Listing:
    lines = _lines(node)
    text = "\n".join(file.lines[lines.start - 1 : lines.stop - 1]) + "\n"
    name = f"{file.shown}::{_name(node)}" if _name(node) else f"{file.shown}:{lines.start}"
    return Listing(name, file.shown, lines.start, 0, text, (*values, *_bound(file, node, values)))


def _bound(file: _File, node: ast.stmt, values: Sequence[Placed]) -> Iterator[Placed]:
    """The names that assignments bind to expressions whose values are known."""
    known = {value.span: value.parts for value in values}
    for each in ast.walk(node):
        if not isinstance(each, ast.Assign) or not isinstance(each.targets[0], ast.Name):
            continue
        target, value = _span(file, each.targets[0]), _span(file, each.value)
        if value in known:
            yield Placed(target, known[value], _span(file, each))


def _span(file: _File, node: ast.expr | ast.stmt) -> Span:
    return file.span(
        protocol.Place("", node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
    )


def _as_written(file: _File, span: Span, primitive: str) -> tuple[str, str]:
    """A collective by the name it is called by, and what it is taken of; a library's by its primitive."""
    for call in file.calls(span):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name.startswith(("p", "all_")) and call.args:
            return name, file.text(call.args[0])
        return primitive, file.text(call)
    return primitive, ""


def _parts(parts: Sequence[protocol.ListedPart]) -> tuple[Part, ...]:
    groups: dict[str, list[protocol.ListedPart]] = {}
    for part in parts:
        groups.setdefault(part.placement, []).append(part)
    return tuple(
        Part(kind, len(each), *((each[0].shape, each[0].dtype) if len(each) == 1 else (None, "")))
        for kind, each in groups.items()
    )
