"""The part of a file that one function needs: what to load when the whole file cannot be imported."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from jax_pmap.reading.parse import ParsedSource
from jax_pmap.reading.scopes import bound_names, free_names


@dataclass(frozen=True, slots=True)
class Slice:
    """The statements a function reaches through names, at the lines they have in the file."""

    #: The file with every other line blank, so that line numbers stay.
    text: str
    #: Source of the definitions and assignments among them (not the imports), in order.
    definitions: tuple[str, ...]
    #: Names those statements bind.
    names: frozenset[str]
    #: Lines of the statements that were left out.
    left_out: tuple[int, ...]


def slice_for(parsed: ParsedSource, names: frozenset[str]) -> Slice:
    """Keep the top-level statements that bind `names`, and what those need in turn."""
    top = [s for s in parsed.tree.body if s is not parsed.definition]
    bound = {id(s): bound_names([s]) | defined(s) for s in top}
    wanted, kept = set(names), set()
    grown = True
    while grown:
        grown = False
        for statement in top:
            if id(statement) not in kept and bound[id(statement)] & wanted:
                kept.add(id(statement))
                wanted |= needs(statement)
                grown = True
    # `from __future__` changes how the rest is read.
    kept |= {id(s) for s in top if isinstance(s, ast.ImportFrom) and s.module == "__future__"}
    lines = [""] * len(parsed.lines)
    definitions = []
    for statement in top:
        if id(statement) not in kept:
            continue
        start = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
        end = statement.end_lineno or statement.lineno
        lines[start - 1 : end] = parsed.lines[start - 1 : end]
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            definitions.append("\n".join(parsed.lines[start - 1 : end]))
    return Slice(
        text="\n".join(lines) + "\n",
        definitions=tuple(definitions),
        names=frozenset().union(*(bound[id(s)] for s in top if id(s) in kept)) if kept else frozenset(),
        left_out=tuple(s.lineno for s in top if id(s) not in kept),
    )


def defined(statement: ast.stmt) -> set[str]:
    """Names a definition or an import binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(item.asname or item.name).partition(".")[0] for item in statement.names}
    return set()


def needs(statement: ast.stmt) -> set[str]:
    """Names a statement reads from outside itself, decorators and defaults included."""
    found = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return found | free_names(statement)
