"""Calls in the body that matter for data parallelism: gradients, collectives, random numbers."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from jax_pmap.reading.facts import Collective, GradientCall
from jax_pmap.syntax.library import COLLECTIVES, GRADIENTS
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.syntax.resolve import Application, Resolver
from jax_pmap.worker.scopes import Function


@dataclass(frozen=True, slots=True)
class GradientOf:
    """A gradient function made from a loss: ``jax.value_and_grad(loss)``."""

    function: ast.expr | Function
    #: Positions the gradient is taken of, or None when computed.
    argnums: tuple[int, ...] | None


def gradient_of(names: Resolver, made: Application | None) -> GradientOf | None:
    """Reads ``jax.grad(loss, argnums=…)``, ``partial(jax.grad, argnums=…)(loss)``, a decorator of a loss."""
    if made is None or made.qualname not in GRADIENTS or not made.args:
        return None
    given = made.argument(1, "argnums")
    argnums = 0 if given is None else names.constant(given)
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    positions = tuple(number for number in numbers if isinstance(number, int))
    return GradientOf(made.args[0], positions if len(positions) == len(numbers) else None)


@dataclass(frozen=True, slots=True)
class BoundGradient:
    """One call of a gradient function, however that function got its name."""

    call: ast.Call
    gradient: GradientOf


def gradient_calls(parsed: ParsedSource) -> tuple[BoundGradient, ...]:
    """Calls of gradient functions in the body, in source order."""
    rows = []
    for call in body_calls(parsed):
        made = parsed.last_value(call.func)
        found = None
        if isinstance(made, ast.Call):
            found = gradient_of(parsed, parsed.application(made))
        elif isinstance(made, ast.FunctionDef) and made is not parsed.definition:
            decorations = (parsed.decoration(made, each) for each in made.decorator_list)
            found = next(filter(None, (gradient_of(parsed, each) for each in decorations)), None)
        if found is not None:
            rows.append(BoundGradient(call, found))
    return tuple(rows)


def gradient_facts(parsed: ParsedSource, bound: BoundGradient) -> GradientCall:
    """The record of one gradient call."""
    function = bound.gradient.function
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        name = function.name
    else:
        name = parsed.segment(function)
    given, positions = bound.call.args, bound.gradient.argnums or ()
    # Behind a star, nothing has a known place; nor, with one, has what is counted from the end.
    known = next((at for at, each in enumerate(given) if isinstance(each, ast.Starred)), len(given))
    of = tuple(parsed.segment(given[number]) for number in positions if 0 <= number < known)
    return GradientCall(parsed.span(bound.call), name, of)


def mapped_axes(parsed: ParsedSource, calls: Iterable[ast.Call]) -> frozenset[str]:
    """Axes that maps bind among some calls, ``vmap(one, axis_name="copies")``, and collectives go over."""
    found = set[str]()
    for call in calls:
        given = next((each.value for each in call.keywords if each.arg == "axis_name"), None)
        made = parsed.application(call) if given is not None else None
        if made is None:
            continue
        first = parsed.qualname(made.args[0]) if made.qualname == "functools.partial" and made.args else ""
        name = parsed.constant(given)
        if isinstance(name, str) and (first or made.qualname).endswith("vmap"):
            found.add(name)
    named = _collectives(parsed, parsed.all_calls) if found else ()
    return frozenset(found & {each.axis_name for each in named})


def collectives(parsed: ParsedSource, inner: Collection[str]) -> tuple[Collective, ...]:
    """Collectives in the body, in source order, but for those over axes that maps in it bind, `inner`."""
    return tuple(each for each in _collectives(parsed, body_calls(parsed)) if each.axis_name not in inner)


def _collectives(parsed: ParsedSource, calls: Iterable[ast.Call]) -> Iterator[Collective]:
    for call in calls:
        made = parsed.application(call)
        if made is None or made.qualname not in COLLECTIVES:
            continue
        op = made.qualname.rpartition(".")[2]
        axis_name = parsed.constant(made.argument(COLLECTIVES[made.qualname], "axis_name"))
        yield Collective(parsed.span(call), op, axis_name if isinstance(axis_name, str) else None)


def body_calls(parsed: ParsedSource) -> list[ast.Call]:
    """All calls in the body, nested functions included, in source order."""
    calls = [
        node
        for statement in parsed.definition.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    ]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset, -(call.end_lineno or 0)))
