"""What the tree of a file defines, and what it gives names to."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from jax_pmap.reading.definition import statements

Import: TypeAlias = ast.Import | ast.ImportFrom

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def functions_in(tree: ast.Module) -> dict[str, int]:
    """Dotted name -> line of every function in a file, also nested ones and methods, outer ones first."""
    found: dict[str, int] = {}
    scopes: list[tuple[str, Sequence[ast.stmt]]] = [("", tree.body)]
    try:
        for prefix, body in scopes:  # grows while it is walked
            for statement, _ in statements(body):
                if isinstance(statement, (*FUNCTION, ast.ClassDef)):
                    dotted = f"{prefix}{statement.name}"
                    scopes.append((f"{dotted}.", statement.body))
                    if not isinstance(statement, ast.ClassDef):
                        found[dotted] = statement.lineno
    except RecursionError:  # thousands of `elif`; what was found so far is what there is to show
        return found
    return found


def binding_of(body: Sequence[ast.stmt], name: str) -> ast.stmt | None:
    """The last statement of a scope that gives `name` a value other than a definition."""
    bound: ast.stmt | None = None
    for statement, _ in statements(body):
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Import | ast.ImportFrom):
            if any(bound_name(alias, statement) == name for alias in statement.names):
                bound = statement
        elif isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor):
            targets = [statement.target]
        elif isinstance(statement, ast.With | ast.AsyncWith):
            targets = [item.optional_vars for item in statement.items if item.optional_vars]
        if any(isinstance(n, ast.Name) and n.id == name for target in targets for n in _names(target)):
            bound = statement
    return bound


def _names(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _names(item)
    elif isinstance(target, ast.Starred):
        yield from _names(target.value)
    else:
        yield target


def bound_name(alias: ast.alias, node: Import) -> str:
    """The name an import gives a value to: ``import a.b`` binds ``a``."""
    if alias.asname or isinstance(node, ast.ImportFrom):
        return alias.asname or alias.name
    return alias.name.partition(".")[0]
