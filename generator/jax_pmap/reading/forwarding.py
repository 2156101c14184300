"""A target that is called as it is: a function in its place that hands its arguments on to it.

What a decorator does to a function, or what a variable holds (``jax.jit(jax.vmap(jax.grad(loss)))``, a
bound method, a partial), need not be known where no collective has to stand inside it: the module's own
object is called, and what becomes parallel is that call.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import re
from collections.abc import Sequence

from jax_pmap.model import Binding, Source, Span
from jax_pmap.syntax.definitions import binding_of, find
from jax_pmap.syntax.parse import parse, resolver_of
from jax_pmap.syntax.text import function_text
from jax_pmap.worker.protocol import Parameter
from jax_pmap.worker.scopes import parameters

# Only these three end a line for Python; str.splitlines knows more.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def statement_of(tree: ast.Module, name: str) -> ast.stmt | None:
    """What gives `name` a value at the top of a file, a class left out: a `def`, an assignment, an import."""
    chain = find(tree, name) if "." not in name else None
    bound = binding_of(tree.body, name)
    if chain is not None and not (bound in tree.body and bound.lineno > chain[-1].lineno):
        return None if isinstance(chain[-1], ast.ClassDef) else chain[-1]
    return bound


def text_of(source: Source, tree: ast.Module, statement: ast.stmt) -> str:
    """What a file has under a name: its `def` without decorators, or the statement that binds it."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return function_text(parse(source)).text
    return ast.get_source_segment(source.text.removeprefix("\ufeff"), statement) or ""


def forwarding(source: Source, tree: ast.Module, statement: ast.stmt, rows: Sequence[Parameter]) -> Source:
    """`source` with a function in the place of `statement` that calls what the module has by that name.

    It has the parameters `rows`. Lines stay where they are; what the function calls the module is imported
    behind the last one.
    """
    text = source.text.removeprefix("\ufeff")
    lines = _LINE.findall(text)
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(each.lineno for each in decorators)]) - 1
    end = statement.end_lineno or statement.lineno
    ahead = lines[statement.lineno - 1][: statement.col_offset]
    taken = _own_parameters(rows, statement)
    if taken is None:
        # Behind one whose default has no source, none can be offered.
        offered = list(itertools.takewhile(lambda row: row.default != "", rows))
        taken = _arguments_of(f"lambda {_signature(offered)}: None")
    package, _, last = source.module.rpartition(".")
    top = resolver_of(source).top
    alias = last
    while alias in top.defined | top.imported.keys() | {each.arg for each in parameters(taken)}:
        alias += "_"
    bound = last if alias == last else f"{last} as {alias}"
    name, newline = source.qualname, source.newline
    made = f"def {name}({ast.unparse(taken)}): return {alias}.{name}({_handed_on(taken)})"
    body = "".join(
        [
            *lines[:first],
            # A definition is where its `def` is.
            newline * (statement.lineno - 1 - first),
            f"{ahead}{made}",
            newline * (end - statement.lineno + 1),
            *lines[end:],
        ]
    )
    imported = f"from {package} import {bound}" if package else f"import {bound}"
    shown = ast.unparse(decorators[0]) if decorators else ""
    value = getattr(statement, "value", None)
    return dataclasses.replace(
        source,
        text=f"{source.text[: len(source.text) - len(text)]}{body}{newline}{imported}{newline}",
        written=source.file_text,
        forwards=text_of(source, tree, statement),
        binding=Binding(
            name,
            f"@{shown}" if shown else ast.unparse(value) if value is not None else f"{alias}.{name}",
            Span(source.shown_path, statement.lineno, statement.col_offset),
            live=True,
            called_by=alias,
        ),
    )


def _arguments_of(text: str) -> ast.arguments:
    """The parameters of a lambda."""
    made = ast.parse(text, mode="eval").body
    assert isinstance(made, ast.Lambda)
    return made.args


def _own_parameters(rows: Sequence[Parameter], statement: ast.stmt) -> ast.arguments | None:
    """The parameters that a `def` is written with, where decorators leave them as they are, or show none."""
    if not isinstance(statement, ast.FunctionDef):
        return None
    same = [each.arg for each in parameters(statement.args)] == [row.name for row in rows]
    variadic = all(row.kind.startswith("VAR_") for row in rows)
    return statement.args if same or variadic else None


def _signature(rows: Sequence[Parameter]) -> str:
    """Source of the parameters `rows`."""
    out: list[str] = []
    for before, row in zip([None, *rows], rows, strict=False):
        kind = row.kind
        if before is not None and before.kind == "POSITIONAL_ONLY" != kind:
            out.append("/")
        if kind == "KEYWORD_ONLY" and (before is None or before.kind not in ("VAR_POSITIONAL", kind)):
            out.append("*")
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(kind, "")
        out.append(f"{stars}{row.name}" + (f"={row.default}" if row.default is not None else ""))
    if rows and rows[-1].kind == "POSITIONAL_ONLY":
        out.append("/")
    return ", ".join(out)


def _handed_on(arguments: ast.arguments) -> str:
    """Source of the arguments that hand parameters on."""
    out = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    out += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    out += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    out += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return ", ".join(out)
