"""Calls in the body that matter for data parallelism: gradients, collectives, random numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from jax_pmap.reading.facts import Collective, GradientCall
from jax_pmap.syntax.parse import ParsedSource
from jax_pmap.syntax.resolve import Resolver

#: Gradient functions.
GRADIENTS = frozenset(
    {
        "jax.grad",
        "jax.value_and_grad",
        "equinox.filter_grad",
        "equinox.filter_value_and_grad",
        "flax.nnx.grad",
        "flax.nnx.value_and_grad",
        "haiku.grad",
        "haiku.value_and_grad",
    }
)

#: Collectives of `jax.lax`, with the position of their axis name.
COLLECTIVES = {
    "psum": 1,
    "pmean": 1,
    "pmax": 1,
    "pmin": 1,
    "all_gather": 1,
    "all_to_all": 1,
    "psum_scatter": 1,
    "ppermute": 1,
    "pshuffle": 1,
    "pbroadcast": 1,
    "axis_index": 0,
    "axis_size": 0,
}


@dataclass(frozen=True, slots=True)
class GradientOf:
    """A gradient function made from a loss: ``jax.value_and_grad(loss)``."""

    function: ast.expr | ast.FunctionDef | ast.AsyncFunctionDef
    #: Positions the gradient is taken of, or None when computed.
    argnums: tuple[int, ...] | None


def gradient_of(resolver: Resolver, expression: ast.expr) -> GradientOf | None:
    """Reads ``jax.grad(loss, argnums=…)`` and ``partial(jax.grad, argnums=…)(loss)``."""
    if not isinstance(expression, ast.Call):
        return None
    name, calls = resolver.transformed(expression)
    given = [call for call in calls if call.args and _takes(resolver, call)]
    # A second call with arguments is the call *of* the gradient function.
    if name not in GRADIENTS or len(given) != 1 or given[0] is not expression:
        return None
    return _gradient(resolver, calls, given[0].args[0])


def _takes(resolver: Resolver, call: ast.Call) -> bool:
    """Whether the first argument of this call is the differentiated function, not `partial`'s."""
    return resolver.qualify(call.func) != "functools.partial"


def decorated_gradient(
    resolver: Resolver, definition: ast.FunctionDef | ast.AsyncFunctionDef
) -> GradientOf | None:
    """A loss whose own decorator makes it a gradient function (``@eqx.filter_value_and_grad``)."""
    for expression in definition.decorator_list:
        name, calls = resolver.transformed(expression)
        if name in GRADIENTS:
            return _gradient(resolver, calls, definition)
    return None


def _gradient(
    resolver: Resolver,
    calls: tuple[ast.Call, ...],
    function: ast.expr | ast.FunctionDef | ast.AsyncFunctionDef,
) -> GradientOf:
    options = {keyword.arg: keyword.value for call in calls for keyword in call.keywords}
    argnums: object = 0
    if "argnums" in options:
        argnums = resolver.literal(options["argnums"])
    elif calls and len(calls[-1].args) > 1 and _takes(resolver, calls[-1]):
        argnums = resolver.literal(calls[-1].args[1])
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    positions = tuple(number for number in numbers if isinstance(number, int))
    return GradientOf(function, positions if len(positions) == len(numbers) else None)


@dataclass(frozen=True, slots=True)
class BoundGradient:
    """One call of a gradient function, however that function got its name."""

    call: ast.Call
    gradient: GradientOf


def gradient_calls(parsed: ParsedSource, resolver: Resolver) -> tuple[BoundGradient, ...]:
    """Calls of gradient functions in the body, in source order."""
    makers: dict[str, GradientOf] = {}
    for node in in_sight(parsed):
        made = None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node is not parsed.definition:
            name, made = node.name, decorated_gradient(resolver, node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, made = node.targets[0].id, gradient_of(resolver, node.value)
        if made is not None:
            makers[name] = made
    rows = []
    for call in body_calls(parsed):
        made = gradient_of(resolver, call.func)
        if made is None and isinstance(call.func, ast.Name):
            made = makers.get(call.func.id)
        if made is not None:
            rows.append(BoundGradient(call, made))
    return tuple(rows)


def gradient_facts(parsed: ParsedSource, bound: BoundGradient) -> GradientCall:
    """The record of one gradient call."""
    function = bound.gradient.function
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        name = function.name
    else:
        name = parsed.segment(function)
    arguments = bound.call.args
    positions = bound.gradient.argnums or ()
    if any(isinstance(argument, ast.Starred) for argument in arguments):
        positions = ()
    of = tuple(parsed.segment(arguments[number]) for number in positions if 0 <= number < len(arguments))
    return GradientCall(parsed.span(bound.call), name, of)


def collectives(parsed: ParsedSource, resolver: Resolver) -> tuple[Collective, ...]:
    """Collectives in the body, in source order."""
    rows = []
    for call in body_calls(parsed):
        module, _, op = (resolver.qualify(call.func) or "").rpartition(".")
        if module != "jax.lax" or op not in COLLECTIVES:
            continue
        position = COLLECTIVES[op]
        given = call.args[position] if len(call.args) > position else None
        for keyword in call.keywords:
            if keyword.arg == "axis_name":
                given = keyword.value
        axis_name = resolver.literal(given)
        rows.append(Collective(parsed.span(call), op, axis_name if isinstance(axis_name, str) else None))
    return tuple(rows)


def in_sight(parsed: ParsedSource) -> Iterator[ast.AST]:
    """What may bind names the body reads: the statements of the module, then the functions around it."""
    yield from parsed.tree.body
    for node in (*parsed.enclosing, parsed.definition):
        if not isinstance(node, ast.ClassDef):
            yield from ast.walk(node)


def body_calls(parsed: ParsedSource) -> list[ast.Call]:
    """All calls in the body, nested functions included, in source order."""
    calls = [
        node
        for statement in parsed.definition.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    ]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset, -(call.end_lineno or 0)))
