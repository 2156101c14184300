"""What the scopes of a file define: which `def` a dotted name means, and what else gives a name its value.

Of several definitions that one counts which does for Python itself: the last that surely runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from jax_pmap.syntax.imports import bound_name

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Definition: TypeAlias = Function | ast.ClassDef

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
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


def last_binding(body: Sequence[ast.stmt], name: str) -> ast.stmt | None:
    """The statement of a scope behind which `name` has its last value; None where nothing gives it one.

    That is the last that binds it, a definition too; of several in the branches of one, that one: in
    ``if several: step = pmap(f)`` with an ``else: step = jit(f)`` the ``if``.
    """
    binding = [each for each in body if _binds([each], name)]
    if not binding:
        return None
    inside = [block for block in blocks(binding[-1]) if _binds(block, name)]
    return last_binding(inside[0], name) if len(binding) == len(inside) == 1 else binding[-1]


def _binds(body: Sequence[ast.stmt], name: str) -> bool:
    """Whether a statement of a scope gives `name` a value, or defines it."""
    defined = any(isinstance(each, DEFINITIONS) and each.name == name for each, _ in statements(body))
    return defined or binding_of(body, name) is not None


def _names(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _names(item)
    elif isinstance(target, ast.Starred):
        yield from _names(target.value)
    else:
        yield target
