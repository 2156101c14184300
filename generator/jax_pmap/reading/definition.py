"""Which `def` a dotted name means, by the rule Python itself follows: the last one that surely runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Definition: TypeAlias = Function | ast.ClassDef

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The statement lists inside a compound statement of the same scope, in source order."""
    if isinstance(statement, DEFINITIONS):
        return
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        for item in (children := getattr(statement, name, [])):
            if isinstance(item, ast.ExceptHandler | ast.match_case):
                yield item.body
            else:
                yield children
                break


def statements(body: Sequence[ast.stmt], conditional: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """All statements of one scope in source order, each with whether it may not run."""
    for statement in body:
        yield statement, conditional
        # The body of `with` always runs; every other block depends on something.
        inside = conditional or not isinstance(statement, ast.With | ast.AsyncWith)
        for block in blocks(statement):
            yield from statements(block, inside)


def find(tree: ast.Module, qualname: str) -> tuple[Definition, ...] | None:
    """The chain of definitions that `qualname` walks through; its last one is the target.

    Of several definitions of one name the last unconditional one counts, and where all are
    conditional (``try`` / ``else`` fallbacks) the last.
    """
    body: Sequence[ast.stmt] = tree.body
    chain: list[Definition] = []
    for part in qualname.split("."):
        found: Definition | None = None
        found_conditional = True
        for statement, conditional in statements(body):
            if isinstance(statement, DEFINITIONS) and statement.name == part:
                if conditional and not found_conditional:
                    continue
                found, found_conditional = statement, conditional
        if found is None:
            return None
        chain.append(found)
        body = found.body
    return tuple(chain)
