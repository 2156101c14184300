"""Functions of the target's own file, found by name to be looked into."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Sequence

from jax_pmap.emit.places import Body
from jax_pmap.model import RefusalError
from jax_pmap.reading.definition import statements
from jax_pmap.reading.facts import FunctionFacts, GradientCall
from jax_pmap.reading.target import Target


def definitions_of(target: Target) -> Callable[[str, Body], tuple[Body, Sequence[GradientCall]] | None]:
    """Finds functions of the target's file by name, for looking into them."""
    from jax_pmap.emit.places import Body
    from jax_pmap.reading.read import parse, read
    from jax_pmap.reading.text import function_text

    def find(name: str, beside: Body) -> tuple[Body, Sequence[GradientCall]] | None:
        around = name in target.facts.closure_names
        if not around and name not in target.facts.module_names and name not in vars_of(target):
            return None
        try:
            source = dataclasses.replace(target.source, qualname=enclosed(target, name) if around else name)
            parsed = parse(source)
        except RefusalError:
            return None
        facts = read(source, parsed)
        if not around and set(target.facts.closure_names) & {*facts.module_names, *names_of(facts)}:
            return None  # The same names mean other things there.
        if facts.is_async or facts.is_generator or any(not d.set_aside for d in facts.decorators):
            return None
        return Body(function_text(parsed), beside.numbers), facts.gradient_calls

    return find


def vars_of(target: Target) -> frozenset[str]:
    """Names of the functions defined at the top of the target's file."""
    return frozenset(node.name for node in target.parsed.tree.body if isinstance(node, ast.FunctionDef))


def enclosed(target: Target, name: str) -> str:
    """Dotted name of the function `name` that the nearest scope around the target defines."""
    parts = target.source.qualname.split(".")
    for depth in range(len(target.parsed.enclosing), 0, -1):
        scope = target.parsed.enclosing[depth - 1]
        inside = (statement for statement, _ in statements(scope.body))
        if not isinstance(scope, ast.ClassDef) and any(getattr(each, "name", "") == name for each in inside):
            return ".".join([*parts[:depth], name])
    return name


def names_of(facts: FunctionFacts) -> set[str]:
    """Names that imports give to a function."""
    return {row.name for row in facts.imported}
